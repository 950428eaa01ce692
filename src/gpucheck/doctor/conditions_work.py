"""How the cards run now, and how they are set: judged from a live reading of cards that others keep busy.

Cards that are free are judged by the doctor's own load (`load.`). Each row is a check of `gpucheck devices`.
"""

from __future__ import annotations

from gpucheck.doctor.condition import Condition
from gpucheck.doctor.every_card import taken_over

CONDITIONS: tuple[Condition, ...] = (
    Condition(
        id="devices.throttled",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="a working card lowers its clock to protect itself",
        meaning="Heat, the power supply or the driver holds the clock of a card that is at work (busy for half of the "
        "time or more). A failure where the hardware does so in both of two readings: its clock is then half or less.",
        settle="`gpucheck devices --watch 2s` shows whether it lasts",
        fix="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; then look at fans, air flow, power cables and supply",
        judge=taken_over("devices.throttled"),
        source="NVML, nvmlClocksEventReasons 0x8, 0x20, 0x40 and 0x80",
    ),
    Condition(
        id="devices.slowed_down",
        rung=None,
        verdict="warn",
        certainty="hint",
        title="the card slows itself down at rest",
        meaning="The hardware lowers the clock because it is too hot or for want of power. A card at rest has no "
        "cause for either: its cooling or its power supply may have failed.",
        settle="`gpucheck bench matmul` shows the clock under load",
        fix="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
        judge=taken_over("devices.slowed_down"),
        source="NVML, nvmlClocksEventReasons",
    ),
    Condition(
        id="devices.violations",
        rung=None,
        verdict="info",
        certainty="proof",
        title="limits held the clock",
        meaning="The driver counts for how long heat, power, the board, reliability and sync boost held a clock. What "
        "grew between two readings holds it now: heat and reliability are a warning. Since the driver was loaded it is "
        "a remark, for power limits do so at any full load.",
        fix="nothing to mend; nvidia-smi -q -d PERFORMANCE shows what holds the clock now",
        judge=taken_over("devices.violations"),
        source="NVML, NVML_FI_DEV_PERF_POLICY_POWER to _RELIABILITY",
    ),
    Condition(
        id="devices.hot",
        rung=None,
        verdict="warn",
        certainty="proof",
        title="a card is at one of its own temperature limits",
        meaning="Each card has its limits: the driver lowers the clock at the highest operating temperature of GPU or "
        "memory, the hardware at the slowdown temperature, and at the last the card switches itself off.",
        fix="look at fans, air flow and the temperature of the room",
        judge=taken_over("devices.hot"),
        source="NVML, NVML_TEMPERATURE_THRESHOLD_GPU_MAX, _MEM_MAX, _SLOWDOWN and _SHUTDOWN of this card",
    ),
    Condition(
        id="devices.low_clock",
        rung=None,
        verdict="warn",
        certainty="hint",
        title="a working card stays below half of its highest clock, and NVML gives no reason",
        meaning="Work is there, nothing is said to hold the clock, and it does not rise. A clock that was locked looks "
        "so.",
        settle="`gpucheck devices --watch 2s` shows whether it lasts",
        fix="nvidia-smi -q -d CLOCK,PERFORMANCE; "
        "a lock of the clock goes with `sudo nvidia-smi -i INDEX --reset-gpu-clocks`",
        judge=taken_over("devices.low_clock"),
        source="a choice: a Tesla T4's base clock is 585 of 1590 MHz, which its power limit explains",
    ),
    Condition(
        id="devices.power_limited",
        rung=None,
        verdict="info",
        certainty="proof",
        title="the power limit holds a working card's clock",
        meaning="Normal at full load: the card is as fast as its power limit lets it be. A warning where the card says "
        "so, draws less than half of its limit and stays below half of its clock.",
        fix="nothing to mend; nvidia-smi -q -d POWER says whether the limit is the card's own",
        judge=taken_over("devices.power_limited"),
        source="NVML, nvmlClocksEventReasons 0x4",
    ),
    Condition(
        id="devices.clock_setting",
        rung=None,
        verdict="info",
        certainty="proof",
        title="a setting holds a working card's clock",
        meaning="Somebody set application clocks, a display clock or sync boost.",
        fix="sudo nvidia-smi -i INDEX --reset-applications-clocks",
        judge=taken_over("devices.clock_setting"),
        source="NVML, nvmlClocksEventReasons 0x2, 0x10 and 0x100",
    ),
    Condition(
        id="devices.link_width",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="a working card's PCIe link has fewer lanes than it could",
        meaning="Copies are slower in proportion. A warning where a card of the same name has more, where fewer than "
        "four are left, and for parts that have sixteen by their data sheet; else a remark, for many laptops, small "
        "cards and slots are wired so.",
        settle="`gpucheck bench transfer` shows the rate; `sudo lspci -vv` shows LnkCap beside LnkSta on both ends",
        fix="reseat the card, leave out a riser, and look at the slot's setting in the firmware (bifurcation)",
        judge=taken_over("devices.link_width"),
        source="NVML, nvmlDeviceGetCurrPcieLinkWidth and nvmlDeviceGetMaxPcieLinkWidth; NVIDIA's data sheets",
    ),
    Condition(
        id="devices.link_generation",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="a working card's PCIe link is slower than card and slot allow",
        meaning="Each generation has twice the rate of the one before. A link that does not rise on a card at work was "
        "lowered after errors, or by a setting.",
        settle="`gpucheck bench transfer` shows the rate; `sudo lspci -vv` shows LnkCap beside LnkSta on both ends",
        fix="reseat the card, leave out a riser, and look at the slot's setting in the firmware",
        judge=taken_over("devices.link_generation"),
        source="NVML, nvmlDeviceGetCurrPcieLinkGeneration and nvmlDeviceGetMaxPcieLinkGeneration",
    ),
    Condition(
        id="devices.pcie_replays",
        rung=None,
        verdict="warn",
        certainty="strong",
        title="the PCIe link sends packets again",
        meaning="A link corrects its errors by sending again, which costs time and is the first sign of a bad contact. "
        "A warning where two readings show more than a sound link may have in that time, or the counter more than in a "
        "day; fewer are a remark.",
        settle="`gpucheck devices --watch 60s` shows whether the counter grows",
        fix="reseat the card and its riser; sudo dmesg | grep -i aer shows errors of the bus",
        judge=taken_over("devices.pcie_replays"),
        source="NVML, nvmlDeviceGetPcieReplayCounter; DCGM's health check of PCIe: a bit error rate of 1e-12, which is "
        "31 a minute for sixteen lanes of the fifth generation",
    ),
    Condition(
        id="devices.mig_empty",
        rung=None,
        verdict="warn",
        certainty="proof",
        title="a card is in MIG mode and has no instance",
        meaning="In MIG mode programs use instances, and there is none: the card is not there for anybody. The others "
        "of the machine go on.",
        fix="sudo nvidia-smi mig -i INDEX -cgi 0 -C to make an instance; or sudo nvidia-smi -i INDEX -mig 0 to use the "
        "whole card",
        judge=taken_over("devices.mig_empty"),
        source="NVIDIA Multi-Instance GPU User Guide",
    ),
    Condition(
        id="devices.ecc_mode",
        rung=None,
        verdict="info",
        certainty="proof",
        title="ECC is off, or will be after a reset",
        meaning="Without it errors of the memory are neither corrected nor counted. Not told of cards that come so.",
        fix="sudo nvidia-smi --ecc-config=1, and reset the card",
        judge=taken_over("devices.ecc_mode"),
        source="NVML, nvmlDeviceGetEccMode and nvmlDeviceGetDefaultEccMode",
    ),
    Condition(
        id="devices.power_limit",
        rung=None,
        verdict="info",
        certainty="proof",
        title="the power limit is below the card's own",
        meaning="Under load the clock is lower for it.",
        fix="sudo nvidia-smi --power-limit=WATTS, where it was not set on purpose",
        judge=taken_over("devices.power_limit"),
        source="NVML, nvmlDeviceGetEnforcedPowerLimit and nvmlDeviceGetPowerManagementDefaultLimit",
    ),
    Condition(
        id="devices.application_clocks",
        rung=None,
        verdict="info",
        certainty="proof",
        title="application clocks are below the card's own",
        meaning="Somebody set them: under load the clock goes no higher.",
        fix="sudo nvidia-smi -i INDEX --reset-applications-clocks",
        judge=taken_over("devices.application_clocks"),
        source="NVML, nvmlDeviceGetApplicationsClock and nvmlDeviceGetDefaultApplicationsClock",
    ),
    Condition(
        id="devices.compute_mode",
        rung=None,
        verdict="info",
        certainty="proof",
        title="compute mode prohibited",
        meaning="No program may compute on the card; a program that tries is told that it is busy or unavailable.",
        fix="sudo nvidia-smi --compute-mode=0",
        judge=taken_over("devices.compute_mode"),
        source="NVML, nvmlDeviceGetComputeMode",
    ),
)
