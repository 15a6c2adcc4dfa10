"""Twelve machines as NVML describes them, composed after data sheets and public reports; none was recorded by us."""


def _card(number: int, **keys: object) -> str:
    known: dict[str, object] = {
        "uuid": f"GPU-00000000-0000-4000-8000-{number:012d}",
        "bus": f"00000000:{number + 1:02X}:00.0",
        "used": 4,
        "ecc": 0,
        "ecc_life": 0,
        "heat": 34,
        "mode": 0,
        "use": 0,
        "power": 70000,
        "clocks": 1,
        "remapped": "0/0",
        "mig": 0,
        "inforom": 0,
    }
    return "card " + " ".join(f"{name}={value}" for name, value in {**known, **keys}.items() if value is not None)


def _machine(*cards: str, driver: str = "580.95.05", cuda: int = 13000) -> str:
    return "\n".join([f"driver {driver}", f"cuda {cuda}", *cards]) + "\n"


_H100 = {"name": "NVIDIA_H100_80GB_HBM3", "memory": 81559, "capability": "9.0", "limit": 700000, "links": 18}
_H100_PCIE = {"name": "NVIDIA_H100_PCIe", "memory": 81559, "capability": "9.0", "limit": 350000}
_A100 = {"name": "NVIDIA_A100-SXM4-80GB", "memory": 81920, "capability": "8.0", "limit": 400000, "links": 12}
_V100 = {"name": "Tesla_V100-SXM2-32GB", "memory": 32768, "capability": "7.0", "limit": 300000, "links": 6}
_ADA = {"name": "NVIDIA_RTX_6000_Ada_Generation", "memory": 49140, "capability": "8.9", "limit": 300000, "mig": None}
# A desktop card has no ECC, no remapped rows, no MIG and no NVLink.
_DESKTOP = {"ecc": None, "ecc_life": None, "remapped": None, "mig": None, "capability": "8.9", "limit": 450000}
_RTX_4090 = {"name": "NVIDIA_GeForce_RTX_4090", "memory": 24564, **_DESKTOP}

MACHINES = {
    "eight H100": _machine(*(_card(i, **_H100) for i in range(8))),
    "eight H100, card 3 lost": _machine(
        *(f"card handle=15 bus=00000000:{i + 1:02X}:00.0" if i == 3 else _card(i, **_H100) for i in range(8))
    ),
    "eight H100, card 3 answers with an unknown error": _machine(
        *(_card(i, **{**_H100, "memory": "!999"} if i == 3 else _H100) for i in range(8))
    ),
    "eight H100, card 5 wants a reset": _machine(
        *(_card(i, **{**_H100, "ecc": "!16"} if i == 5 else _H100) for i in range(8))
    ),
    "eight H100 PCIe": _machine(*(_card(i, **_H100_PCIE) for i in range(8))),
    "eight A100, one with a corrupt infoROM": _machine(
        *(_card(i, **{**_A100, "inforom": 14} if i == 6 else _A100) for i in range(8)), driver="550.54.15", cuda=12040
    ),
    "seven RTX 6000 Ada": _machine(*(_card(i, **_ADA) for i in range(7))),
    "one RTX 4090 with a desktop": _machine(_card(0, **{**_RTX_4090, "used": 900})),
    "one RTX 4090 whose fan failed": _machine(_card(0, **{**_RTX_4090, "clocks": "0x40", "heat": 91})),
    "one GB10": _machine(_card(0, name="NVIDIA_GB10", capability="12.1", ecc=None, ecc_life=None, remapped=None)),
    "two V100": _machine(*(_card(i, **_V100) for i in range(2))),
    "one H100 cut into slices": _machine(_card(0, **{**_H100, "mig": 1, "used": "!4", "process": "4242:0"})),
}
