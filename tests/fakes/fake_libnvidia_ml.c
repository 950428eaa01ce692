/* A libnvidia-ml that answers from a script. A handle is the device's number + 1; a MIG instance `slot` of device d has
 * the number 100 * (d + 1) + slot. Left out on request: WITHOUT_MEMORY_V2, WITHOUT_NEW_NAMES. */
#include "script.h"

typedef int Code;
typedef void *Handle;
#define DEVICE(handle) ((int)(size_t)(handle) - 1)
#define HANDLE(device) ((Handle)(size_t)((device) + 1))

Code nvmlInitWithFlags(unsigned flags) { unsigned x; (void)flags; return small(-1, "nvml.init", "0", &x); }
Code nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Code nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(Code code) { return code == 9 ? "Driver Not Loaded" : "a code of the fake"; }

static Code text(int device, const char *key, const char *fallback, char *into, unsigned room) {
    return say(device, key, fallback, into, room);
}
Code nvmlSystemGetDriverVersion(char *into, unsigned room) { return text(-1, "driver", "580.95.05", into, room); }
Code nvmlSystemGetNVMLVersion(char *into, unsigned room) { return text(-1, "nvml", "13.580.95.05", into, room); }
Code nvmlSystemGetCudaDriverVersion_v2(unsigned *version) { return small(-1, "cuda", "13000", version); }
/* Only other tools ask for these (benchmarks/startup.py, docs/session.md): nvitop prints a traceback for each that is
 * not there, gpustat stops. */
Code nvmlSystemGetCudaDriverVersion(unsigned *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }
Code nvmlDeviceGetEncoderUtilization(Handle handle, unsigned *percent, unsigned *period_us) {
    *percent = *period_us = 0;
    return 0;
}
Code nvmlDeviceGetDecoderUtilization(Handle handle, unsigned *percent, unsigned *period_us) {
    *percent = *period_us = 0;
    return 0;
}
Code nvmlDeviceGetIndex(Handle handle, unsigned *index) { *index = (unsigned)DEVICE(handle); return 0; }
Code nvmlDeviceGetDisplayActive(Handle handle, unsigned *active) { *active = 0; return 0; }
Code nvmlDeviceGetDriverModel(Handle handle, unsigned *now, unsigned *pending) { return 3; }

Code nvmlDeviceGetCount_v2(unsigned *count) { return small(-1, "nvml.count", "2", count); }

Code nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *handle) {
    unsigned unused;
    *handle = HANDLE(index);
    return small((int)index, "handle", "0", &unused);
}
Code nvmlDeviceGetName(Handle handle, char *into, unsigned room) {
    return text(DEVICE(handle), "name", "NVIDIA Fake 100", into, room);
}
Code nvmlDeviceGetUUID(Handle handle, char *into, unsigned room) {
    char fallback[80];
    int device = DEVICE(handle);
    snprintf(fallback, sizeof fallback, "%s-00000000-0000-0000-0000-%012d", device >= 100 ? "MIG" : "GPU", device);
    return text(device, "uuid", fallback, into, room);
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;
Code nvmlDeviceGetPciInfo_v3(Handle handle, Pci *pci) {
    char fallback[8];
    memset(pci, 0, sizeof *pci);
    snprintf(fallback, sizeof fallback, "%d", 0x10 + DEVICE(handle));
    snprintf(pci->bus_id, sizeof pci->bus_id, "not read");
    return small(DEVICE(handle), "bus", fallback, &pci->bus);
}
Code nvmlDeviceGetCudaComputeCapability(Handle handle, int *major, int *minor) {
    unsigned both;
    Code code = small(DEVICE(handle), "capability", "90", &both);
    *major = (int)both / 10, *minor = (int)both % 10;
    return code;
}

typedef struct { unsigned long long total, free, used; } MemoryV1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
Code nvmlDeviceGetMemoryInfo(Handle handle, MemoryV1 *memory) {
    unsigned long long reserved;
    int device = DEVICE(handle);
    Code code = number(device, "memory.v1", "0", &reserved);
    number(device, "memory.total", "1000", &memory->total);
    number(device, "memory.used", "100", &memory->used);
    number(device, "memory.reserved", "50", &reserved);
    memory->used += reserved;
    memory->free = memory->total - memory->used;
    return code;
}
#ifndef WITHOUT_MEMORY_V2
Code nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2 *memory) {
    unsigned long long unused;
    int device = DEVICE(handle);
    Code code = number(device, "memory", "0", &unused);
    if (memory->version != 0x02000028) return 25;
    number(device, "memory.total", "1000", &memory->total);
    number(device, "memory.used", "100", &memory->used);
    number(device, "memory.reserved", "50", &memory->reserved);
    memory->free = memory->total ? memory->total - memory->used - memory->reserved : 0;
    return code;
}
#endif

typedef struct { unsigned gpu, memory; } Rates;
Code nvmlDeviceGetUtilizationRates(Handle handle, Rates *rates) {
    rates->memory = 7;
    return small(DEVICE(handle), "utilization", "42", &rates->gpu);
}
#ifndef WITHOUT_NEW_NAMES
typedef struct { unsigned version, sensor; int temperature; } Temperature;
Code nvmlDeviceGetTemperatureV(Handle handle, Temperature *answer) {
    unsigned value;
    Code code = small(DEVICE(handle), "temperature", "34", &value);
    answer->temperature = (int)value;
    return code;
}
Code nvmlDeviceGetCurrentClocksEventReasons(Handle handle, unsigned long long *bits) {
    return number(DEVICE(handle), "clock_reasons", "1", bits);
}
#endif
Code nvmlDeviceGetTemperature(Handle handle, unsigned sensor, unsigned *value) {
    return sensor ? 2 : small(DEVICE(handle), "temperature.old", "35", value);
}
Code nvmlDeviceGetCurrentClocksThrottleReasons(Handle handle, unsigned long long *bits) {
    return number(DEVICE(handle), "clock_reasons.old", "4", bits);
}
Code nvmlDeviceGetPowerUsage(Handle handle, unsigned *value) {
    return small(DEVICE(handle), "power", "76500", value);
}
Code nvmlDeviceGetEnforcedPowerLimit(Handle handle, unsigned *value) {
    return small(DEVICE(handle), "power_limit", "700000", value);
}
Code nvmlDeviceGetClockInfo(Handle handle, unsigned kind, unsigned *value) {
    return small(DEVICE(handle), kind == 1 ? "sm_clock" : "memory_clock", kind == 1 ? "345" : "2619", value);
}
Code nvmlDeviceGetMaxClockInfo(Handle handle, unsigned kind, unsigned *value) {
    return small(DEVICE(handle), kind == 1 ? "max_sm_clock" : "max_memory_clock", kind == 1 ? "1980" : "2619", value);
}

#define NUMBER(function, key, fallback) \
    Code function(Handle handle, unsigned *value) { return small(DEVICE(handle), key, fallback, value); }
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation", "1")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width", "8")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.max_generation", "4")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie.max_width", "16")
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie.device_max_generation", "5")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence", "1")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode", "0")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, "mig.slots", "7")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie.replays", "0")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit", "700000")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit.default", "700000")
NUMBER(nvmlDeviceGetPerformanceState, "performance_state", "0")
NUMBER(nvmlDeviceGetMinorNumber, "minor", "!3")
NUMBER(nvmlDeviceGetFanSpeed, "fan", "!3")
Code nvmlDeviceGetPowerManagementLimitConstraints(Handle handle, unsigned *least, unsigned *most) {
    small(DEVICE(handle), "power_limit.max", "700000", most);
    return small(DEVICE(handle), "power_limit.min", "200000", least);
}
Code nvmlDeviceGetApplicationsClock(Handle handle, unsigned kind, unsigned *value) {
    return small(DEVICE(handle), kind ? "application_clock.memory" : "application_clock", "!3", value);
}
Code nvmlDeviceGetDefaultApplicationsClock(Handle handle, unsigned kind, unsigned *value) {
    return small(DEVICE(handle), kind ? "default_clock.memory" : "default_clock", "!3", value);
}
Code nvmlDeviceGetSerial(Handle handle, char *into, unsigned room) {
    return text(DEVICE(handle), "serial", "!3", into, room);
}
Code nvmlDeviceGetBoardPartNumber(Handle handle, char *into, unsigned room) {
    return text(DEVICE(handle), "part_number", "!3", into, room);
}
Code nvmlDeviceGetVbiosVersion(Handle handle, char *into, unsigned room) {
    return text(DEVICE(handle), "vbios", "96.00.74.00.01", into, room);
}
typedef struct { unsigned long long total, free, used; } Bar1;
Code nvmlDeviceGetBAR1MemoryInfo(Handle handle, Bar1 *bar1) {
    number(DEVICE(handle), "bar1.used", "1", &bar1->used);
    return number(DEVICE(handle), "bar1.total", "!3", &bar1->total);
}
#ifndef WITHOUT_NEW_NAMES
Code nvmlDeviceGetGspFirmwareVersion(Handle handle, char *into) {
    return text(DEVICE(handle), "gsp", "!3", into, 64);
}
typedef struct { unsigned version; int margin; } Margin;
Code nvmlDeviceGetMarginTemperature(Handle handle, Margin *margin) {
    if (margin->version != 0x01000008) return 25;
    return small(DEVICE(handle), "margin", "!3", (unsigned *)&margin->margin);
}
Code nvmlDeviceGetDefaultEccMode(Handle handle, unsigned *mode) {
    return small(DEVICE(handle), "ecc.default", "1", mode);
}
typedef struct {
    unsigned version;
    unsigned long long aggregate_parity, aggregate_secded, aggregate_corrected;
    unsigned long long volatile_parity, volatile_secded, volatile_corrected, l2, sm, pcie, mcu, other;
    unsigned exceeded;
} Sram;
Code nvmlDeviceGetSramEccErrorStatus(Handle handle, Sram *sram) {
    int device = DEVICE(handle);
    if (sram->version != 0x01000068) return 25;
    number(device, "sram.aggregate_parity", "0", &sram->aggregate_parity);
    number(device, "sram.aggregate_secded", "0", &sram->aggregate_secded);
    number(device, "sram.aggregate_corrected", "0", &sram->aggregate_corrected);
    number(device, "sram.volatile_parity", "0", &sram->volatile_parity);
    number(device, "sram.volatile_secded", "0", &sram->volatile_secded);
    number(device, "sram.volatile_corrected", "0", &sram->volatile_corrected);
    number(device, "sram.l2", "0", &sram->l2);
    number(device, "sram.sm", "0", &sram->sm);
    number(device, "sram.pcie", "0", &sram->pcie);
    number(device, "sram.mcu", "0", &sram->mcu);
    number(device, "sram.other", "0", &sram->other);
    return small(device, "sram.exceeded", "!3", &sram->exceeded);
}
#endif
typedef struct { unsigned max, high, partial, low, none; } Banks;
Code nvmlDeviceGetRowRemapperHistogram(Handle handle, Banks *banks) {
    int device = DEVICE(handle);
    small(device, "banks.high", "0", &banks->high);
    small(device, "banks.partial", "0", &banks->partial);
    small(device, "banks.low", "0", &banks->low);
    small(device, "banks.none", "0", &banks->none);
    return small(device, "banks.max", "!3", &banks->max);
}

Code nvmlDeviceGetEccMode(Handle handle, unsigned *now, unsigned *pending) {
    char same[32];
    Code code = small(DEVICE(handle), "ecc", "1", now);
    snprintf(same, sizeof same, "%u", *now);
    if (!code) small(DEVICE(handle), "ecc.pending", same, pending);
    return code;
}
Code nvmlDeviceGetTotalEccErrors(Handle handle, unsigned kind, unsigned counter, unsigned long long *count) {
    static const char *keys[2][2] = {{"ecc.volatile_corrected", "ecc.aggregate_corrected"},
                                     {"ecc.volatile_uncorrected", "ecc.aggregate_uncorrected"}};
    return kind > 1 || counter > 1 ? 2 : number(DEVICE(handle), keys[kind][counter], "0", count);
}
Code nvmlDeviceGetRemappedRows(Handle handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                               unsigned *failed) {
    int device = DEVICE(handle);
    Code code = small(device, "remap.correctable", "0", correctable);
    small(device, "remap.uncorrectable", "0", uncorrectable);
    small(device, "remap.pending", "0", pending);
    small(device, "remap.failed", "0", failed);
    return code;
}

Code nvmlDeviceGetTotalEnergyConsumption(Handle handle, unsigned long long *millijoules) {
    return number(DEVICE(handle), "energy", "!3", millijoules);
}

/* One link's value is the key with its number: `nvlink.3.state`, `nvlink.3.replay`, of one device `2.nvlink.3.state`;
 * else that of all links. */
static Code of_link(Handle handle, unsigned link, const char *what, const char *fallback, unsigned long long *value) {
    char own[64], all[64], text[64];
    snprintf(own, sizeof own, "nvlink.%u.%s", link, what);
    snprintf(all, sizeof all, "nvlink.%s", what);
    Code code = say(DEVICE(handle), all, fallback, text, sizeof text);
    char of_device[80];
    snprintf(of_device, sizeof of_device, "%d.%s", DEVICE(handle), own);
    if (look_up(of_device, text, sizeof text) || look_up(own, text, sizeof text))
        code = say(DEVICE(handle), own, "", text, sizeof text);
    *value = code ? 0 : strtoull(text, NULL, 0);
    return code;
}
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    Code code;
    union { unsigned ui; unsigned long long ull; double d; } value;
} FieldValue;
Code nvmlDeviceGetFieldValues(Handle handle, int count, FieldValue *values) {
    unsigned unused;
    Code code = small(DEVICE(handle), "fields", "0", &unused);
    for (int i = 0; i < count; i++) {
        int device = DEVICE(handle);
        unsigned *value = &values[i].value.ui;
        switch (values[i].field) {
        case 230: values[i].code = small(device, "recovery_action", "0", value); break;
        case 170: values[i].code = small(device, "c2c.count", "!3", value); break;
        case 171: values[i].code = small(device, values[i].scope ? "c2c.status" : "c2c.first_status", "1", value); break;
        case 172: values[i].code = small(device, "c2c.speed", "44712", value); break;
        case 74: values[i].code = number(device, "violation.power", "0", &values[i].value.ull); break;
        case 75: values[i].code = number(device, "violation.thermal", "0", &values[i].value.ull); break;
        case 76: values[i].code = number(device, "violation.sync_boost", "0", &values[i].value.ull); break;
        case 77: values[i].code = number(device, "violation.board_limit", "!3", &values[i].value.ull); break;
        case 78: values[i].code = number(device, "violation.low_utilization", "0", &values[i].value.ull); break;
        case 79: values[i].code = number(device, "violation.reliability", "0", &values[i].value.ull); break;
        case 82: values[i].code = small(device, "memory_temperature", "!3", value); break;
        case 197: values[i].code = number(device, "pcie.sent", "!3", &values[i].value.ull); break;
        case 198: values[i].code = number(device, "pcie.received", "!3", &values[i].value.ull); break;
        case 91: values[i].code = small(device, "nvlinks", "!3", value); break;
        case 214:
            values[i].code = of_link(handle, values[i].scope, "recovery_failed", "!3", &values[i].value.ull);
            break;
        default: values[i].code = 3;
        }
    }
    return code;
}
Code nvmlDeviceGetTemperatureThreshold(Handle handle, unsigned kind, unsigned *value) {
    static const char *keys[] = {"shutdown", "slowdown", "memory_max", "gpu_max"};
    return kind > 3 ? 3 : small(DEVICE(handle), keys[kind], "!3", value);
}
/* `retired.corrected` and `retired.uncorrected` are how many pages there are; their addresses are of no interest. */
Code nvmlDeviceGetRetiredPages(Handle handle, unsigned cause, unsigned *count, unsigned long long *addresses) {
    unsigned room = *count;
    Code code = small(DEVICE(handle), cause ? "retired.uncorrected" : "retired.corrected", "!3", count);
    if (code || !addresses) return code ? code : *count ? 7 : 0;
    for (unsigned page = 0; page < *count && page < room; page++) addresses[page] = page << 12;
    return *count > room ? 7 : 0;
}
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired.pending", "!3")

Code nvmlDeviceGetNvLinkState(Handle handle, unsigned link, unsigned *active) {
    unsigned long long value;
    Code code = of_link(handle, link, "state", "1", &value);
    *active = (unsigned)value;
    return code;
}
Code nvmlDeviceGetNvLinkErrorCounter(Handle handle, unsigned link, unsigned counter, unsigned long long *value) {
    static const char *names[] = {"replay", "recovery", "crc_flit", "crc_data"};
    return counter > 3 ? 2 : of_link(handle, link, names[counter], "0", value);
}
#ifndef WITHOUT_NEW_NAMES
typedef struct { unsigned version; unsigned char cluster[16]; Code status; unsigned clique, state, health; } Fabric;
Code nvmlDeviceGetGpuFabricInfoV(Handle handle, Fabric *fabric) {
    Code code = small(DEVICE(handle), "fabric", "!3", &fabric->state);
    unsigned status;
    if (fabric->version != 0x02000024) return 25;
    small(DEVICE(handle), "fabric.status", "0", &status);
    fabric->status = (Code)status;
    small(DEVICE(handle), "fabric.health", "0", &fabric->health);
    return code;
}
#endif
typedef struct { unsigned char cluster[16]; Code status; unsigned clique, state; } OldFabric;
Code nvmlDeviceGetGpuFabricInfo(Handle handle, OldFabric *fabric) {
    fabric->status = 0;
    return small(DEVICE(handle), "fabric.old", "!3", &fabric->state);
}

Code nvmlDeviceGetMemoryAffinity(Handle handle, unsigned words, unsigned long long *mask, unsigned scope) {
    if (scope || !words) return 2;
    memset(mask, 0, words * sizeof *mask);
    return number(DEVICE(handle), "node_mask", "!3", mask);
}
Code nvmlDeviceGetMigMode(Handle handle, unsigned *now, unsigned *pending) {
    char same[16];
    Code code = small(DEVICE(handle), "mig", "!3", now);
    snprintf(same, sizeof same, "%u", *now);
    if (!code) small(DEVICE(handle), "mig.pending", same, pending);
    return code;
}
Code nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, unsigned slot, Handle *instance) {
    unsigned used;
    small(DEVICE(handle), "mig.used", "0", &used);
    *instance = HANDLE(100 * (DEVICE(handle) + 1) + (int)slot);
    return used >> slot & 1 ? 0 : 6;
}

/* `processes=12:5000,13:-`: PID and bytes; `-` is NVML's "not available". */
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
static Code list(Handle handle, const char *key, const char *fallback, unsigned *count, Process *into) {
    char listed[1024];
    unsigned found = 0, room = *count;
    Code code = say(DEVICE(handle), key, fallback, listed, sizeof listed);
    if (code) return code;
    for (char *item = strtok(listed, ","); item; item = strtok(NULL, ",")) {
        char *colon = strchr(item, ':');
        if (into && found < room) {
            memset(&into[found], 0, sizeof *into);
            into[found].pid = (unsigned)strtoull(item, NULL, 0);
            into[found].used = colon && colon[1] != '-' ? strtoull(colon + 1, NULL, 0) : ~0ULL;
        }
        found++;
    }
    *count = found;
    return found > room ? 7 : 0;
}
#define LIST(function, key, fallback) \
    Code function(Handle handle, unsigned *count, Process *into) { return list(handle, key, fallback, count, into); }
LIST(nvmlDeviceGetComputeRunningProcesses_v3, "processes", "")
LIST(nvmlDeviceGetComputeRunningProcesses_v2, "processes.v2", "")
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics", "")
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics.v2", "")

/* `process_utilization=12:85,13:0`: PID and percent, each later than the one before. NOT_FOUND where there is none. */
typedef struct { unsigned pid; unsigned long long at_us; unsigned sm, memory, encoder, decoder; } Sample;
Code nvmlDeviceGetProcessUtilization(Handle handle, Sample *into, unsigned *count, unsigned long long since_us) {
    char listed[1024];
    unsigned found = 0, room = *count;
    Code code = say(DEVICE(handle), "process_utilization", "", listed, sizeof listed);
    if (code) return code;
    for (char *item = strtok(listed, ","); item; item = strtok(NULL, ","), found++) {
        char *colon = strchr(item, ':');
        if (!into || found >= room) continue;
        memset(&into[found], 0, sizeof *into);
        into[found].pid = (unsigned)strtoul(item, NULL, 0);
        into[found].sm = colon ? (unsigned)strtoul(colon + 1, NULL, 0) : 0;
        into[found].at_us = since_us + found + 1;
    }
    *count = found;
    return found > room ? 7 : found ? 0 : 6;
}
