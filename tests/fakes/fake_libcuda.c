/* A libcuda that answers from the same script. `cuda.order=1,0` are NVML's numbers in CUDA's order; of those, it shows
 * what CUDA_VISIBLE_DEVICES (numbers or UUIDs) lets through. Left out on request: WITHOUT_UUID_V2.
 * A CUDA build of torch takes it for the driver's: the runtime asks cuGetProcAddress for everything. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "script.h"

typedef int Code;
static int shown[64], shown_count;

static void uuid_text(int device, char *into, size_t room) {
    char fallback[80];
    snprintf(fallback, sizeof fallback, "GPU-00000000-0000-0000-0000-%012d", device);
    say(device, "uuid", fallback, into, room);
}

static void apply_mask(void) {
    char order[256], mask[512], *items[64], *rest = NULL, uuid[80];
    int devices[64], count = 0, wanted = 0;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    say(-1, "cuda.order", "1,0", order, sizeof order);
    for (char *item = strtok_r(order, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) devices[count++] = atoi(item);
    shown_count = 0;
    if (!visible) {
        for (int i = 0; i < count; i++) shown[shown_count++] = devices[i];
        return;
    }
    snprintf(mask, sizeof mask, "%s", visible);
    for (char *item = strtok_r(mask, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) items[wanted++] = item;
    for (int w = 0; w < wanted; w++) {
        int match = -1;
        for (int i = 0; i < count; i++) {
            uuid_text(devices[i], uuid, sizeof uuid);
            if (!strncmp(items[w], "GPU-", 4) ? !strncmp(uuid, items[w], strlen(items[w])) : atoi(items[w]) == i)
                match = devices[i];
        }
        if (match < 0) return; /* the first entry that fits nothing ends the list */
        shown[shown_count++] = match;
    }
}

Code cuInit(unsigned flags) {
    unsigned unused;
    Code code = small(-1, "cuda.init", "0", &unused);
    (void)flags;
    printf("a library that prints on stdout\n");
    fflush(stdout);
    if (code) return code;
    apply_mask();
    return shown_count ? 0 : 100;
}
Code cuDriverGetVersion(int *version) {
    unsigned value;
    Code code = small(-1, "libcuda", "13000", &value);
    *version = (int)value;
    return code;
}
Code cuGetErrorName(Code code, const char **into) { *into = "CUDA_ERROR_FAKE"; return code < 900 ? 0 : 1; }
Code cuGetErrorString(Code code, const char **into) { *into = "words of the fake"; return code < 900 ? 0 : 1; }
Code cuDeviceGetCount(int *count) { *count = shown_count; return 0; }
Code cuDeviceGet(int *device, int index) {
    unsigned unused;
    *device = shown[index];
    return small(shown[index], "cuda.get", "0", &unused);
}
Code cuDeviceGetName(char *into, int room, int device) {
    return say(device, "name", "NVIDIA Fake 100", into, (size_t)room);
}

static void bytes_of(const char *uuid, unsigned char *into) {
    int place = 0;
    for (const char *digit = strchr(uuid, '-'); *digit && place < 32; digit++) {
        if (*digit == '-') continue;
        unsigned value = *digit <= '9' ? *digit - '0' : (*digit | 32) - 'a' + 10;
        into[place / 2] = (unsigned char)(place % 2 ? into[place / 2] | value : value << 4);
        place++;
    }
}
Code cuDeviceGetUuid(unsigned char *into, int device) {
    char uuid[80];
    unsigned unused;
    uuid_text(device, uuid, sizeof uuid);
    bytes_of(uuid, into);
    return small(device, "cuda.uuid", "0", &unused);
}
#ifndef WITHOUT_UUID_V2
Code cuDeviceGetUuid_v2(unsigned char *into, int device) { /* a MIG instance has its own */
    char uuid[80], instance[80] = "";
    uuid_text(device, uuid, sizeof uuid);
    say(device, "cuda.instance", uuid, instance, sizeof instance);
    bytes_of(instance, into);
    unsigned unused;
    return small(device, "cuda.uuid", "0", &unused);
}
#endif
Code cuDeviceTotalMem_v2(size_t *size, int device) {
    unsigned long long value;
    Code code = number(device, "memory.total", "1000", &value);
    *size = (size_t)(value ? value : 2000);
    return code;
}
Code cuDeviceGetPCIBusId(char *into, int room, int device) {
    snprintf(into, (size_t)room, "0000:%02X:00.0", 0x10 + device);
    return 0;
}
Code cuDeviceGetAttribute(int *value, int attribute, int device) {
    unsigned capability, integrated;
    Code code = small(device, "capability", "90", &capability);
    small(device, "integrated", "0", &integrated);
    switch (attribute) {
        case 16: *value = 132; return 0;
        case 37: *value = 6144; return 0;
        case 18: *value = (int)integrated; return 0;
        case 75: *value = (int)capability / 10; return code;
        case 76: *value = (int)capability % 10; return code;
        default: return 1;
    }
}

/* What is not written above answers 0 and does nothing. The runtime starts, says what cuInit answers, and lets no
 * device work: it needs tables of the driver that nobody has described. */
static Code nothing(void) { return 0; }
Code cuGetExportTable(const void **table, const void *id) { (void)id; *table = NULL; return 500; }
Code cuGetProcAddress(const char *name, void **into, int version, unsigned long long flags) {
    char newer[96];
    (void)version, (void)flags;
    snprintf(newer, sizeof newer, "%s_v2", name);
    if (!(*into = dlsym(RTLD_DEFAULT, newer)) && !(*into = dlsym(RTLD_DEFAULT, name))) *into = (void *)nothing;
    return 0;
}
Code cuGetProcAddress_v2(const char *name, void **into, int version, unsigned long long flags, int *status) {
    if (status) *status = 0;
    return cuGetProcAddress(name, into, version, flags);
}
