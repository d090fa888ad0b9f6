"""Saving and loading: networks, and all that is needed to go on with a training to the same bits.

A file is safetensors: named arrays, which PyTorch reads as well, and text beside them. It is written beside its place
and moved there when it is whole, so that a crash leaves the old one.
"""

from __future__ import annotations

import json
import os
import tempfile
import typing
from pathlib import Path

import numpy as np

from pmpp.nn import init
from pmpp.nn.modules import Module

__all__ = ["load", "save"]

BEGIN = "pmpp"  # the key of what is no array


def save(path: str | Path, **parts: typing.Any) -> None:
    """Write the states of modules, optimisers, schedulers and loaders, by name; the random sequence goes with them.

    ``save("digits.safetensors", model=net)`` writes the names of ``net.state_dict()`` as they are, so that PyTorch
    loads the file into the same network. Raises TypeError for a part that has no state.
    """
    from safetensors.numpy import save_file

    arrays: dict[str, np.ndarray] = {}
    rest: dict[str, typing.Any] = {"sequence": init.where(), "parts": {}}
    for name, part in parts.items():
        if not hasattr(part, "state_dict"):
            raise TypeError(f"{name} must have a state_dict(), was {type(part).__name__}")
        found = part.state_dict()
        if isinstance(part, Module):
            arrays |= {_key(name, parts, key): value for key, value in found.items()}
        else:
            arrays |= {f"{name}/{key}": value for key, value in found.pop("arrays", {}).items()}
        rest["parts"][name] = None if isinstance(part, Module) else found
    path = Path(path)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        whole = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
        save_file(whole, draft, metadata={BEGIN: json.dumps(rest)})
        with open(draft, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)


def load(path: str | Path, **parts: typing.Any) -> None:
    """Read what `save` wrote back into parts of the same names. All is read and checked before a part is changed.

    A file of PyTorch's, with the arrays of one network, loads into one module. A part of your own kind is checked
    beforehand if it has a ``check_state_dict(values)`` that raises what its ``load_state_dict`` would raise.
    Raises FileNotFoundError; TypeError for a part that has no load_state_dict(); and TypeError or ValueError that says
    what is wrong with the file, or which part does not fit it.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(str(path), framework="numpy") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
            rest = json.loads((file.metadata() or {}).get(BEGIN, "{}"))
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is no whole safetensors file: {error}") from None
    known = rest.get("parts", dict.fromkeys(parts))
    missing = sorted(parts.keys() - known.keys())
    if missing:
        raise ValueError(f"{path} has no part {missing[0]!r}; it has {', '.join(known) or 'none'}")
    found: dict[str, typing.Any] = {}
    for name, part in parts.items():
        if not hasattr(part, "load_state_dict"):
            raise TypeError(f"{name} must have a load_state_dict(), was {type(part).__name__}")
        if isinstance(part, Module) != (known[name] is None):
            words = "of a module" if known[name] is None else "of no module"
            raise ValueError(f"{path} has under {name!r} the state {words}, but {name} is a {type(part).__name__}")
        one = sum(value is None for value in known.values()) == 1
        own = arrays if not known or (one and isinstance(part, Module)) else _below(arrays, f"{name}/")
        if isinstance(part, Module):
            others = [f"{other}/" for other, value in known.items() if value is not None]
            found[name] = {k: v for k, v in own.items() if not k.startswith(tuple(others))}
        else:
            values = known[name]
            found[name] = {**values, "arrays": own} if "groups" in values else values
    for name, part in parts.items():
        if hasattr(part, "check_state_dict"):
            part.check_state_dict(found[name])
    if "sequence" in rest:
        init.resume(rest["sequence"])
    for name in sorted(parts, key=lambda name: hasattr(parts[name], "check_state_dict")):  # others may still raise
        parts[name].load_state_dict(found[name])


def _below(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}


def _key(name: str, parts: dict[str, typing.Any], key: str) -> str:
    """A parameter's name: as the network has it, if there is one network; else below the part's."""
    return key if sum(isinstance(part, Module) for part in parts.values()) == 1 else f"{name}/{key}"
