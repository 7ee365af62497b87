from __future__ import annotations

import subprocess

import pytest
from trainer_jobs import DEEPSPEED_PYTHON


@pytest.fixture(scope="session")
def deepspeed_python() -> str:
    """A Python that has DeepSpeed: this one, or the one of TRACEKIT_DEEPSPEED_PYTHON."""
    look = subprocess.run([DEEPSPEED_PYTHON, "-c", "import importlib.util as u; assert u.find_spec('deepspeed')"],
                          capture_output=True, check=False)  # fmt: skip
    if look.returncode:
        pytest.skip("not required: DeepSpeed, by pip install '.[trainer,deepspeed]', or TRACEKIT_DEEPSPEED_PYTHON")
    return DEEPSPEED_PYTHON
