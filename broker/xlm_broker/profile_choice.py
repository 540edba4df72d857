"""Which times plans are made by: this machine's profile where it can be used, else careful guesses that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from xlm.errors import ProfileError
from xlm.protocol.link import DeviceConfig
from xlm_broker.planner.sharding.profile import MachineProfile, ProfileKey
from xlm_broker.planner.wire import A_MODEL, Standing
from xlm_broker.profile_store import check_profile, load_profile

MEASURE: Final = f"xlm profile --quick --model {A_MODEL}"  # its own kernels too
ADVICE: Final = f"measure this machine once, in less than a minute: {MEASURE}"
_OF_THE_DEVICE: Final = ("gpu", "driver")  # fields of the key that say nothing about CPU and memory


def profile_of(path: Path, device: DeviceConfig, identity: Mapping[str, str]) -> tuple[MachineProfile | None, Standing]:
    """The profile to plan by, if any, and what is to be said about it. ``identity``: of this machine (DeviceFacts)."""
    try:
        profile = load_profile(path)
        here = _key(identity)
        if here is None:
            return None, Standing(state="missing", text="this machine's identity is not known", advice=ADVICE)
        check_profile(profile, expected_key(profile, device, here))
        return profile, _standing(
            profile, whole=all(getattr(profile.key, n) == getattr(here, n) for n in _OF_THE_DEVICE)
        )
    except ProfileError as error:
        state = {"profile_missing": "missing", "profile_stale": "stale"}.get(error.code, "corrupt")
        advice = ADVICE if state == "missing" else f"measure again: {MEASURE} --fresh"
        text = f"{error.message}; plans are made by careful guesses"
        return None, Standing(state=state, text=text, advice=advice, code=error.code)


def _key(identity: Mapping[str, str]) -> ProfileKey | None:
    try:
        cores = int(identity["n_cores"])
        return ProfileKey(identity["cpu"], cores, *(identity[name] for name in ("isa", "gpu", "driver", "ggml")))
    except (KeyError, ValueError):
        return None


def expected_key(profile: MachineProfile, device: DeviceConfig, here: ProfileKey) -> ProfileKey:
    """What the profile's key must be. The virtual GPU's times follow from its configuration, and without a device
    none are needed: there only CPU and ggml count."""
    if device.kind not in ("sim", "none"):
        return here
    return replace(here, **{name: getattr(profile.key, name) for name in _OF_THE_DEVICE})


def _standing(profile: MachineProfile, *, whole: bool) -> Standing:
    if not profile.complete:
        text = "the profile of this machine is not complete"
        return Standing(state="partly", text=text, advice="finish it: xlm profile goes on where it stopped")
    if not whole:
        return Standing(state="measured", text="the CPU as measured on this machine, the device as it is configured")
    kind = "a quick profile" if profile.quick else "the profile"
    return Standing(state="measured", text=f"{kind} of this machine")
