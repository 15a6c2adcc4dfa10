/* Stands for the driver's libnvidia-ml.so.1 in tests: answers what the file at FAKE_NVML says.
 *
 *   driver 580.95.05
 *   cuda 13000
 *   init 18                      nvmlInit answers with that error (9: not loaded, 18: version mismatch)
 *   hang                         nvmlInit never answers
 *   crash                        nvmlInit ends the process with a signal
 *   card uuid=GPU-… name=NVIDIA_H100_80GB_HBM3 memory=81559 used=4 …
 *   card handle=15               the card cannot be opened (15: lost, 16: requires reset, 999: unknown error)
 *
 * A key that a card lacks answers "not supported"; `key=!N` answers with error N. Underscores of names are blanks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, MOST_CARDS = 16, MOST_KEYS = 40 };
typedef struct { char *names[MOST_KEYS], *values[MOST_KEYS]; int count; } Card;
static Card cards[MOST_CARDS];
static int num_cards, init_error, cuda_version = 13000;
static char driver[80] = "580.95.05";

static void read_card(char *line) {
    Card *card = &cards[num_cards++];
    char *rest = NULL;
    for (char *word = strtok_r(line, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        char *sign = strchr(word, '=');
        if (!sign || card->count == MOST_KEYS) continue;
        *sign = 0;
        card->names[card->count] = strdup(word);
        card->values[card->count++] = strdup(sign + 1);
    }
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "", "r");
    if (!file) return 9;
    char line[4096];
    num_cards = 0;
    while (fgets(line, sizeof line, file)) {
        if (!strncmp(line, "driver ", 7)) sscanf(line + 7, "%79s", driver);
        else if (!strncmp(line, "cuda ", 5)) cuda_version = atoi(line + 5);
        else if (!strncmp(line, "init ", 5)) init_error = atoi(line + 5);
        else if (!strncmp(line, "hang", 4)) for (;;) pause();
        else if (!strncmp(line, "crash", 5)) abort();
        else if (!strncmp(line, "card", 4) && num_cards < MOST_CARDS) read_card(line + 4);
    }
    fclose(file);
    return init_error;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == 14 ? "infoROM is corrupted" : "an error"; }

/* 0 and the text of a key, or the error that stands for it. */
static int text_of(void *handle, const char *name, char **found) {
    Card *card = handle;
    for (int i = 0; i < card->count; i++)
        if (!strcmp(card->names[i], name)) {
            *found = card->values[i];
            return **found == '!' ? atoi(*found + 1) : OK;
        }
    return NOT_SUPPORTED;
}
static int copy(void *handle, const char *name, char *into, unsigned size) {
    char *text = NULL;
    int code = text_of(handle, name, &text);
    if (code) return code;
    snprintf(into, size, "%s", text);
    for (char *sign = into; *sign; sign++) if (*sign == '_') *sign = ' ';
    return OK;
}
static int number(void *handle, const char *name, unsigned *into) {
    char *text = NULL;
    int code = text_of(handle, name, &text);
    if (!code) *into = (unsigned)strtoul(text, NULL, 0);
    return code;
}

int nvmlSystemGetDriverVersion(char *into, unsigned size) { snprintf(into, size, "%s", driver); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *into) { *into = cuda_version; return OK; }
int nvmlSystemGetProcessName(unsigned pid, char *into, unsigned size) {
    if (pid == 999) return NOT_FOUND;
    snprintf(into, size, "python");
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *into) { *into = num_cards; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **into) {
    char *text = NULL;
    *into = &cards[index];
    return text_of(*into, "handle", &text) == OK ? atoi(text) : OK;
}
int nvmlDeviceGetUUID(void *handle, char *into, unsigned size) { return copy(handle, "uuid", into, size); }
int nvmlDeviceGetName(void *handle, char *into, unsigned size) { return copy(handle, "name", into, size); }
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *into) { /* total, free, used */
    unsigned total = 0, used = 0;
    int code = number(handle, "memory", &total);
    if (code) return code;
    number(handle, "used", &used);
    into[0] = (unsigned long long)total << 20;
    into[2] = (unsigned long long)used << 20;
    into[1] = into[0] - into[2];
    return OK;
}
int nvmlDeviceGetPciInfo_v3(void *handle, char *into) { /* legacy bus, five numbers, bus */
    return copy(handle, "bus", into + 16 + 5 * sizeof(unsigned), 32);
}
int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, unsigned long long *into) {
    unsigned count = 0;
    int code = number(handle, counter == 0 ? "ecc" : "ecc_life", &count);
    (void)kind;
    *into = count;
    return code;
}
int nvmlDeviceGetRetiredPages(void *handle, int cause, unsigned *count, unsigned long long *pages) {
    unsigned retired = 0;
    int code = number(handle, "retired", &retired);
    (void)cause;
    if (code) return code;
    if (*count < retired) { *count = retired; return TOO_SMALL; }
    *count = retired;
    for (unsigned i = 0; i < retired; i++) pages[i] = i;
    return OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(void *handle, unsigned *into) { return number(handle, "pending", into); }
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *later) { *later = 0; return number(handle, "mig", now); }
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *into) { (void)sensor; return number(handle, "heat", into); }
int nvmlDeviceGetCudaComputeCapability(void *handle, unsigned *major, unsigned *minor) {
    char *text = NULL;
    int code = text_of(handle, "capability", &text);
    if (!code) sscanf(text, "%u.%u", major, minor);
    return code;
}
int nvmlDeviceGetComputeMode(void *handle, unsigned *into) { return number(handle, "mode", into); }
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *into) { return number(handle, "limit", into); }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *into) { return number(handle, "power", into); }
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *into) { into[1] = 0; return number(handle, "use", into); }
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *into) {
    unsigned bits = 0;
    int code = number(handle, "clocks", &bits);
    *into = bits;
    return code;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *into) {
    unsigned bits = 0;
    int code = number(handle, "old_clocks", &bits);
    *into = bits;
    return code;
}
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *into) {
    unsigned links = 0;
    int code = number(handle, "links", &links);
    if (code) return code;
    if (link >= 18) return 2;
    *into = link < links;
    return OK;
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *not, unsigned *pending, unsigned *failed) {
    char *text = NULL;
    int code = text_of(handle, "remapped", &text);
    *corrected = *not = 0;
    if (!code) sscanf(text, "%u/%u", pending, failed);
    return code;
}
int nvmlDeviceValidateInforom(void *handle) {
    unsigned code = 0;
    number(handle, "inforom", &code);
    return code;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, char *into) {
    char *text = NULL;
    unsigned pid = 0, used = 0;
    int code = text_of(handle, "process", &text);
    if (code == NOT_SUPPORTED) { *count = 0; return OK; }
    if (code) return code;
    if (*count < 1) { *count = 1; return TOO_SMALL; }
    sscanf(text, "%u:%u", &pid, &used);
    *count = 1;
    memset(into, 0, 24);
    *(unsigned *)into = pid;
    *(unsigned long long *)(into + 8) = used ? (unsigned long long)used << 20 : ~0ULL;
    return OK;
}
