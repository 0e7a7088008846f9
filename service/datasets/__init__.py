"""Uploaded data sets: received, inspected, stored."""
