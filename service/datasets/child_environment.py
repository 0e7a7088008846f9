"""Environment variables of child processes that read users' files: runs and upload inspections.

They get only the variables listed here, so that no password or key of the service reaches them.
"""

import os
from collections.abc import Mapping

NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_CACHE_HOME"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "ATEN_CPU_CAPABILITY", "TRANSFORMERS_OFFLINE"),
        *("MPT_STORE", "MPT_DATA_DIR", "MPT_MODELS_DIR", "MPT_ALLOW_DOWNLOAD", "MPT_KERNELS"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_TF32_OVERRIDE"),
    }
)
PREFIXES = (
    *("LC_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ONEDNN_", "MALLOC_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "TORCH", "PYTORCH_", "HF_"),
)
HUB_ONLY = frozenset(
    {"HF_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
    | {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}
)
"""Variables for downloads from the hub. They may hold credentials."""


def run_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of every run."""
    return {
        name: value
        for name, value in environ.items()
        if name not in HUB_ONLY and (name in NAMES or name.startswith(PREFIXES))
    }


def hub_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the further variables of a run that may download from the hub."""
    return {name: environ[name] for name in sorted(HUB_ONLY) if name in environ}
