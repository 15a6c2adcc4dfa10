"""Whether the NVIDIA driver runs the CUDA that torch was built with; torch is not imported.

Also a program for the build of the image. It says what an image on a base has beyond the packages of every stage, and,
before a base is downloaded, whether that would work here:

    python -m containers.launch.gpus.drivers --packages BASE_IMAGE
    python -m containers.launch.gpus.drivers BASE_IMAGE [PACKAGE …]
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

from containers.launch.gpus.inventory import read_gpus

Version = tuple[int, int]

# What the label of an image says where its torch is built without CUDA.
NO_CUDA = "none"

# NVIDIA's page on minor version compatibility: the driver's release from which every minor version of a CUDA runs.
_FIRST_DRIVER = {11: 450, 12: 525, 13: 580}
_CUDA_IN_NAME = re.compile(r"cuda[_-]?(\d+)\.(\d+)")
_VERSION = re.compile(r"(\d+)\.(\d+)")
# The release of vLLM for torch 2.13, and the CUDA that its builds on the package index are for.
VLLM = "vllm==0.29.0"
_VLLM_CUDA = 13


def driver_objection(driver: str, cuda: Version) -> tuple[str, str]:
    """Why the driver does not run that CUDA, and what to do; empty where it does, or where its release is unknown.

    Args:
        driver: its version, as `570.86.15`.
    """
    release = _VERSION.match(driver)
    first = _FIRST_DRIVER.get(cuda[0])
    if release is None or first is None or int(release.group(1)) >= first:
        return "", ""
    fits = [version for version, number in _FIRST_DRIVER.items() if int(release.group(1)) >= number]
    older = f"build the image on a base with CUDA {max(fits)} (BASE_IMAGE=…-cuda{max(fits)}.…)" if fits else ""
    advice = f"Install driver {first} or newer" + (f", or {older}." if older else ".")
    return f"driver {driver} is too old for CUDA {cuda[0]}.{cuda[1]}, which needs {first} or newer", advice


def parsed_version(text: str) -> Version | None:
    """`13.0` as (13, 0); None for anything else."""
    match = _VERSION.match(text)
    return (int(match.group(1)), int(match.group(2))) if match else None


def installed_cuda() -> str:
    """CUDA of the torch in this Python, as `13.0`; `none` for a build without CUDA, empty where that is unknown."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"^cuda\b[^=]*=\s*(?:'([\d.]+)'|None)", text, re.MULTILINE)
    return (found.group(1) or NO_CUDA) if found else ""


def named_cuda(base: str) -> Version | None:
    """The CUDA that the name of a base image says; None where it says none."""
    named = _CUDA_IN_NAME.search(base)
    return None if named is None else (int(named.group(1)), int(named.group(2)))


def usual_packages(base: str) -> list[str]:
    """What an image on that base has beyond the packages of every stage: vLLM, where its build fits the base's CUDA."""
    cuda = named_cuda(base)
    return [VLLM] if cuda is not None and cuda[0] == _VLLM_CUDA else []


def base_objections(base: str, packages: list[str], *, driver: str) -> list[str]:
    """Why an image on that base would not work on this machine, as far as its name says which CUDA it has."""
    cuda = named_cuda(base)
    if cuda is None:
        return []
    found = [" ".join(filter(None, (f"{text}.", advice))) for text, advice in [driver_objection(driver, cuda)] if text]
    if cuda[0] != _VLLM_CUDA and any(package.startswith("vllm") for package in packages):
        found.append(
            f"vLLM from the package index is built for CUDA {_VLLM_CUDA} and cannot be imported on a base with CUDA "
            f"{cuda[0]}.{cuda[1]}. Take a base with CUDA {_VLLM_CUDA}, or leave vLLM out."
        )
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--packages":
        sys.stdout.write("".join(f"{package}\n" for package in usual_packages(sys.argv[2])))
        sys.exit()
    problems = base_objections(sys.argv[1], sys.argv[2:], driver=read_gpus().driver)
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    sys.exit(1 if problems else 0)
