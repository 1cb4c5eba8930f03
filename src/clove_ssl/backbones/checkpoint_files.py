"""Read the tensors of a checkpoint of any kind without running code from it."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clove_ssl.backbones.layouts import State, recognise, unwrap
from clove_ssl.errors import UserError
from clove_ssl.export.safetensors_file import read_backbone_file

_WHERE_STATES_HIDE = ("state_dict", "model")


def read_tensors(path: Path) -> tuple[State, dict[str, str]]:
    """Tensors and metadata of a file of any kind; metadata only of our own."""
    with path.open("rb") as file:
        start = file.read(9)
    if not start:
        raise UserError(f"{path} is empty (0 bytes). Copy or download it again.")
    if start[8:] == b"{":  # after the length, a safetensors file begins with JSON
        return read_backbone_file(path)
    return _find_state(_read_torch_file(path)), {}


def _read_torch_file(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals(_harmless_types()):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} was not loaded, because it holds more than tensors and plain values, and "
            f"such a file can run code ({_reason(error)}). If you trust it, open it in the program "
            "it is from and save the weights alone: torch.save(model.state_dict(), 'new.pth')"
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError, OSError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read: {_reason(error)}. It is damaged or no checkpoint at all; "
            "copy or download it again."
        ) from None


def _harmless_types() -> list[Any]:
    """What released checkpoints hold besides tensors: options and NumPy arrays."""
    reconstruct = np.zeros(0).__reduce__()[0]
    return [
        argparse.Namespace,
        np.ndarray,
        np.dtype,
        type(np.dtype(np.float32)),
        type(np.dtype(np.float64)),
        type(np.dtype(np.int64)),
        # NumPy 1 and 2 write different names for the same function.
        (reconstruct, "numpy.core.multiarray._reconstruct"),
        (reconstruct, "numpy._core.multiarray._reconstruct"),
    ]


def _find_state(checkpoint: Any) -> State:
    """The state dict inside a checkpoint: under a usual key, or the checkpoint itself."""
    if not isinstance(checkpoint, Mapping):
        return {}
    inner = [checkpoint[key] for key in _WHERE_STATES_HIDE if key in checkpoint]
    states = [_tensors(value) for value in [*inner, checkpoint] if isinstance(value, Mapping)]
    recognised = (state for state in states if recognise(unwrap(state)) is not None)
    return next(recognised, states[0])


def _tensors(values: Mapping[Any, Any]) -> State:
    tensors = {
        str(name): torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }
    return {name: value for name, value in tensors.items() if isinstance(value, Tensor)}


def _reason(error: Exception) -> str:
    """The telling part of torch's long messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "GLOBAL" in line or "global" in line]
    return (telling or lines or [type(error).__name__])[0].rstrip(".")
