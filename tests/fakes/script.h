/* The script of the fake libraries: lines `key=value` in the file that FAKE_DRIVER names.
 * `1.power=…` is device 1's, `power=…` every device's. A value `!15` makes the call answer 15, `hang` never return,
 * `crash` end the process. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char script[65536];

static void read_script(void) {
    const char *path = getenv("FAKE_DRIVER");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t size = 0;
    if (file) { size = fread(script, 1, sizeof script - 1, file); fclose(file); }
    script[size] = 0;
}

/* The value of a key, copied to `into`; 0 where the script does not name it. Read anew each time: a test may change it. */
static int look_up(const char *key, char *into, size_t room) {
    size_t length = strlen(key);
    read_script();
    for (char *line = script; *line; line += strcspn(line, "\n") + 1) {
        if (!strncmp(line, key, length) && line[length] == '=') {
            size_t size = strcspn(line + length + 1, "\n");
            if (size >= room) size = room - 1;
            memcpy(into, line + length + 1, size);
            into[size] = 0;
            return 1;
        }
        if (!line[strcspn(line, "\n")]) break;
    }
    return 0;
}

/* A device's value, else every device's, else `fallback`. What the call answers: 0, or the script's code. */
static int say(int device, const char *key, const char *fallback, char *into, size_t room) {
    char own[128];
    snprintf(own, sizeof own, "%d.%s", device, key);
    if (!(device >= 0 && look_up(own, into, room)) && !look_up(key, into, room)) snprintf(into, room, "%s", fallback);
    if (!strcmp(into, "hang")) for (;;) pause();
    if (!strcmp(into, "slow")) {
        sleep(2);
        snprintf(into, room, "%s", fallback);
    }
    if (!strcmp(into, "crash")) raise(SIGSEGV);
    return into[0] == '!' ? atoi(into + 1) : 0;
}

static int number(int device, const char *key, const char *fallback, unsigned long long *value) {
    char text[256];
    int code = say(device, key, fallback, text, sizeof text);
    *value = code ? 0 : strtoull(text, NULL, 0);
    return code;
}

static int small(int device, const char *key, const char *fallback, unsigned *value) {
    unsigned long long wide;
    int code = number(device, key, fallback, &wide);
    *value = (unsigned)wide;
    return code;
}
