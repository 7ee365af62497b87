"""Links between host and GPU, by the GPU's product: one direction, in 1e9 bytes/s, before any overhead.

Source: product data sheets (the generation of PCI Express, 16 lanes) and its specification: 16 GT/s a lane of PCIe 4.0
are 31.5 GB/s for 16 lanes, and half or twice as much a generation before or after. A slot can have fewer lanes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """One kind of link."""

    name: str
    gb_per_s: float


PCIE3 = HostLink(name="PCIe 3.0 x16", gb_per_s=15.8)
PCIE4 = HostLink(name="PCIe 4.0 x16", gb_per_s=31.5)
PCIE5 = HostLink(name="PCIe 5.0 x16", gb_per_s=63.0)
C2C = HostLink(name="NVLink-C2C", gb_per_s=450.0)
_PRODUCTS = (
    (r"GH200|GB200|GB300", C2C),
    (r"P100|V100|T4|TITAN|MI50|MI60|RTX 20\d\d|GTX", PCIE3),
    (r"A100|A800|A10G?|A16|A30|A40|A6000|A5000|A4000|L4|L40S?|MI100|MI210|MI250X?|RTX [34]0\d\d", PCIE4),
    (r"H100|H200|H20|H800|B100|B200|B300|MI300[AX]?|MI325X|MI35[05]X|RTX 50\d\d", PCIE5),
)


def host_link_of(device_name: str | None) -> HostLink | None:
    """The link of the product that a driver's name means; None for one that is not listed."""
    for pattern, link in _PRODUCTS:
        if re.search(rf"(?<![A-Z0-9])({pattern})(?![A-Z0-9])", (device_name or "").upper()):
            return link
    return None
