/* A stand-in for libnvidia-ml.so.1, driven by a text file.
 *
 * The file named by FAKE_NVML_STATE is read anew in each call; a test replaces it by rename.
 * Lines are "key value":
 *
 *   count 4                      GPUs of the machine
 *   error.<function> 18          the function fails with this code (nvmlInitWithFlags: at start)
 *   hang 1 | 2                   every call blocks; 2: and SIGTERM is ignored
 *   event.<serial> <gpu> <xid>   an XID error; serials must grow
 *   gpu.<n>.lost 1               every call on the GPU answers "GPU is lost"
 *   gpu.<n>.hidden 1             the GPU is not enumerated
 *   gpu.<n>.error.<function> 3   the function fails for this GPU
 *   gpu.<n>.<field> <value>      uuid, name, bus, memory, used, utilisation, temperature, power,
 *                                ecc, remap_pending, remap_failed, clocks, mig, numa, switch,
 *                                pids (comma separated), nvlink.<link> (remote bus id)
 *
 * Compiled with -DOLD_DRIVER it lacks the functions that newer drivers brought.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPUS 16
#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define GPU_IS_LOST 15
#define EVENT_XID 8ULL
#define TOPOLOGY_SINGLE 10
#define TOPOLOGY_NODE 40
#define POLL_MS 10

typedef struct { int unused; } device_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_t;
typedef struct { device_t *device; unsigned long long type, data; unsigned gi, ci; } event_t;

static device_t devices[GPUS];
static __thread char state[65536];

static void load_state(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    state[0] = '\n';
    size_t length = file ? fread(state + 1, 1, sizeof(state) - 2, file) : 0;
    state[length + 1] = '\0';
    if (file)
        fclose(file);
}

static int text_of(const char *key, char *out, size_t size) {
    char line[160];
    snprintf(line, sizeof(line), "\n%s ", key);
    const char *found = strstr(state, line);
    if (!found)
        return 0;
    found += strlen(line);
    snprintf(out, size, "%.*s", (int)strcspn(found, "\n"), found);
    return 1;
}

static long long number_of(const char *key, long long fallback) {
    char text[64];
    return text_of(key, text, sizeof(text)) ? strtoll(text, NULL, 0) : fallback;
}

static const char *gpu_key(device_t *device, const char *field) {
    static __thread char key[128];
    snprintf(key, sizeof(key), "gpu.%d.%s", (int)(device - devices), field);
    return key;
}

static long long field(device_t *device, const char *name, long long fallback) {
    return number_of(gpu_key(device, name), fallback);
}

static int enter(const char *function, device_t *device) {
    char key[128];
    load_state();
    while (number_of("hang", 0)) {
        if (number_of("hang", 0) == 2)
            signal(SIGTERM, SIG_IGN);
        usleep(POLL_MS * 1000);
        load_state();
    }
    snprintf(key, sizeof(key), "error.%s", function);
    long long code = number_of(key, SUCCESS);
    if (code == SUCCESS && device)
        code = field(device, "lost", 0) ? GPU_IS_LOST : field(device, key, SUCCESS);
    return (int)code;
}

#define ENTER(device) \
    do { \
        int code_ = enter(__func__, device); \
        if (code_ != SUCCESS) \
            return code_; \
    } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER(NULL);
    return SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    return code == 28 ? "GPU not found" : "some error";
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER(NULL);
    if (!text_of("driver", out, size))
        snprintf(out, size, "580.1");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(NULL);
    *count = 0;
    for (long long n = 0; n < number_of("count", 4) && n < GPUS; n++)
        *count += !field(&devices[n], "hidden", 0);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    ENTER(NULL);
    for (long long n = 0; n < number_of("count", 4) && n < GPUS; n++) {
        if (field(&devices[n], "hidden", 0))
            continue;
        if (index-- == 0) {
            *out = &devices[n];
            return field(*out, "lost", 0) ? GPU_IS_LOST : SUCCESS;
        }
    }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetUUID(device_t *device, char *out, unsigned size) {
    ENTER(device);
    if (!text_of(gpu_key(device, "uuid"), out, size))
        snprintf(out, size, "GPU-%08x-1111-2222-3333-444444444444", (int)(device - devices));
    return SUCCESS;
}

int nvmlDeviceGetName(device_t *device, char *out, unsigned size) {
    ENTER(device);
    if (!text_of(gpu_key(device, "name"), out, size))
        snprintf(out, size, "Fake H200");
    return SUCCESS;
}

static void fill_bus_id(device_t *device, char *out, size_t size) {
    if (!text_of(gpu_key(device, "bus"), out, size))
        snprintf(out, size, "00000000:%02X:00.0", 0xA0 + (int)(device - devices));
}

int nvmlDeviceGetPciInfo_v3(device_t *device, pci_t *out) {
    ENTER(device);
    memset(out, 0, sizeof(*out));
    fill_bus_id(device, out->bus_id, sizeof(out->bus_id));
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *out) {
    ENTER(device);
    out->total = field(device, "memory", 1000000);
    out->used = field(device, "used", 1000) + 500;
    out->free = out->total - out->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *out) {
    ENTER(device);
    out->gpu = field(device, "utilisation", 0);
    out->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(device_t *device, unsigned sensor, unsigned *out) {
    (void)sensor;
    ENTER(device);
    *out = field(device, "temperature", 40);
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(device_t *device, unsigned *out) {
    ENTER(device);
    *out = field(device, "power", 70000);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(
    device_t *device, unsigned type, unsigned counter, unsigned long long *out) {
    ENTER(device);
    *out = type == 1 && counter == 0 ? field(device, "ecc", 0) : 7;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t *device, unsigned *count, process_t *out) {
    char text[256];
    unsigned found = 0;
    ENTER(device);
    if (text_of(gpu_key(device, "pids"), text, sizeof(text)))
        for (char *rest = text, *pid; (pid = strsep(&rest, ","));) {
            if (out && found < *count)
                out[found] = (process_t){.pid = strtoul(pid, NULL, 10), .used = 1000};
            found++;
        }
    int fits = found == 0 || (out && found <= *count);
    *count = found;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetTopologyCommonAncestor(device_t *first, device_t *second, unsigned *level) {
    ENTER(first);
    long long here = field(first, "switch", -1);
    *level = here >= 0 && here == field(second, "switch", -1) ? TOPOLOGY_SINGLE : TOPOLOGY_NODE;
    return SUCCESS;
}

#ifndef OLD_DRIVER

int nvmlDeviceGetMemoryInfo_v2(device_t *device, memory_v2_t *out) {
    ENTER(device);
    out->total = field(device, "memory", 1000000);
    out->used = field(device, "used", 1000);
    out->reserved = 500;
    out->free = out->total - out->used - out->reserved;
    return SUCCESS;
}

int nvmlDeviceGetMemoryAffinity(
    device_t *device, unsigned words, unsigned long long *set, unsigned scope) {
    (void)scope;
    ENTER(device);
    long long node = field(device, "numa", -1);
    if (node < 0 || node >= 64LL * words)
        return NOT_SUPPORTED;
    memset(set, 0, words * sizeof(*set));
    set[node / 64] = 1ULL << (node % 64);
    return SUCCESS;
}

int nvmlDeviceGetNumaNodeId(device_t *device, int *out) {
    ENTER(device);
    *out = -1;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(
    device_t *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
    unsigned *failed) {
    ENTER(device);
    *corrected = *uncorrected = 0;
    *pending = field(device, "remap_pending", 0);
    *failed = field(device, "remap_failed", 0);
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(device_t *device, unsigned long long *out) {
    ENTER(device);
    *out = field(device, "clocks", 0);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device_t *device, unsigned *current, unsigned *pending) {
    ENTER(device);
    long long mode = field(device, "mig", -1);
    if (mode < 0)
        return NOT_SUPPORTED;
    *current = *pending = mode;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(device_t *device, unsigned link, unsigned *active) {
    char name[32], remote[32];
    ENTER(device);
    if (link >= 18)
        return INVALID_ARGUMENT;
    snprintf(name, sizeof(name), "nvlink.%u", link);
    *active = text_of(gpu_key(device, name), remote, sizeof(remote));
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t *device, unsigned link, pci_t *out) {
    char name[32];
    ENTER(device);
    snprintf(name, sizeof(name), "nvlink.%u", link);
    memset(out, 0, sizeof(*out));
    return text_of(gpu_key(device, name), out->bus_id, sizeof(out->bus_id)) ? SUCCESS
                                                                           : NOT_SUPPORTED;
}

static unsigned long last_event;

static int next_event(event_t *out) {
    const char *line = state;
    while ((line = strstr(line, "\nevent."))) {
        unsigned long serial, gpu, xid;
        line += 1;
        if (sscanf(line, "event.%lu %lu %lu", &serial, &gpu, &xid) != 3 || serial <= last_event)
            continue;
        last_event = serial;
        *out = (event_t){.device = &devices[gpu % GPUS], .type = EVENT_XID, .data = xid};
        return 1;
    }
    return 0;
}

int nvmlEventSetCreate(void **set) {
    event_t old;
    ENTER(NULL);
    while (next_event(&old))
        ;
    *set = devices;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(device_t *device, unsigned long long types, void *set) {
    (void)types, (void)set;
    ENTER(device);
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, event_t *out, unsigned timeout_ms) {
    (void)set;
    for (unsigned waited = 0; waited < timeout_ms; waited += POLL_MS) {
        ENTER(NULL);
        if (next_event(out))
            return SUCCESS;
        usleep(POLL_MS * 1000);
    }
    return TIMEOUT;
}

int nvmlEventSetFree(void *set) {
    (void)set;
    return SUCCESS;
}

#endif
