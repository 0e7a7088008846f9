"""Data from every source: simulated, files, uploads and hubs. The inspection of uploads does not
import torch."""
