"""Copies between host and device that do not wait for the device."""

from services.worker.transfers.copies import Download, timing_event, upload, upload_into
from services.worker.transfers.packed import PackedArrays

__all__ = ["Download", "PackedArrays", "timing_event", "upload", "upload_into"]
