"""All campaigns by name."""

from __future__ import annotations

from torture import data_files, faults, full_disk, fuzz, kills, mpi_kills, two_at_once
from torture.campaign import Campaign

ALL = (kills, mpi_kills, fuzz, data_files, faults, full_disk, two_at_once)
CAMPAIGNS: dict[str, Campaign] = {module.CAMPAIGN.name: module.CAMPAIGN for module in ALL}
