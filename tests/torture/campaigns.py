"""All campaigns by name, and which of them are run unless others are named."""

from __future__ import annotations

from torture import data_files, faults, full_disk, fuzz, kills, mpi_kills, two_at_once
from torture.campaign import Campaign

ALL = (kills, mpi_kills, fuzz, data_files, faults, full_disk, two_at_once)
CAMPAIGNS: dict[str, Campaign] = {module.CAMPAIGN.name: module.CAMPAIGN for module in ALL}
LATER = ("faults",)  # tests/mpi_driver.py does not know all phases yet
DEFAULT = tuple(name for name in CAMPAIGNS if name not in LATER)
