/* Compiler launcher of Torchyard: schedules compiles by memory, measures and logs each one.
 *
 *   meter g++ -c a.cpp -o a.o     as a launcher (CMAKE_CXX_COMPILER_LAUNCHER)
 *   g++ -c a.cpp -o a.o           under another name: runs the next g++ on PATH
 *
 * It must never fail a build: if anything is missing or broken, it only executes the compiler.
 * Variables, all starting with TORCHYARD_METER_: LOG, LOCKS (files), JOBS, UNITS, UNIT_MIB,
 * DEFAULT_MIB, TABLE (file), CACHE (program put before a compiler), INSIDE (guard).
 *
 * Locks are POSIX record locks on single bytes of one file: they are released when the process
 * ends, even by kill -9, and are not inherited by children.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "command_line.h"

/* Bytes of the lock file. All locks are from its start (SEEK_SET, which is 0). */
enum { TURNSTILE = 0, SLOTS = 1, MEMORY = 1 << 20, LINE_BYTES = 65536 };
enum { FIRST_PAUSE_US = 2000, LONGEST_PAUSE_US = 20000, GONE_SIGNAL_OFFSET = 7 };

struct settings {
    int log, locks;
    long jobs, units, unit_mib;
};

static volatile sig_atomic_t child = 0;
static pid_t parent = 0;
static char line[LINE_BYTES];
static size_t used;

static const char *variable(const char *name) {
    char full[64];
    snprintf(full, sizeof full, "TORCHYARD_METER_%s", name);
    const char *value = getenv(full);
    return value && *value ? value : NULL;
}

static long number(const char *name, long fallback) {
    const char *text = variable(name);
    char *end;
    long value = text ? strtol(text, &end, 10) : 0;
    return text && !*end && value >= 0 && value < MEMORY ? value : fallback;
}

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* --- the real compiler ---------------------------------------------------------------------- */

/* Find the next program of this name on PATH, after the folder of the meter if possible: a compiler
 * cache before it may have called the meter and must not be called again. NULL if there is none. */
static char *next_program(const char *name) {
    static char candidate[PATH_MAX];
    struct stat self, other;
    const char *execfn = (const char *)getauxval(AT_EXECFN), *path = getenv("PATH");
    if (!path || !execfn || stat(execfn, &self)) return NULL;
    for (int anywhere = 0; anywhere < 2; anywhere++) {
        int seen = anywhere;
        for (const char *at = path, *end; at; at = *end ? end + 1 : NULL) {
            end = strchrnul(at, ':');
            snprintf(candidate, sizeof candidate, "%.*s/%s", end == at ? 1 : (int)(end - at),
                     end == at ? "." : at, name);
            if (stat(candidate, &other) || !S_ISREG(other.st_mode) || access(candidate, X_OK)) continue;
            if (other.st_dev == self.st_dev && other.st_ino == self.st_ino)
                seen = 1;
            else if (seen)
                return candidate;
        }
    }
    return NULL;
}

/* --- admission ------------------------------------------------------------------------------ */

/* Expected memory in MiB: by exact name of output or source, else first glob, else kind. */
static long expected_mib(const struct job *job) {
    const char *names[3] = {basename_of(job->output), basename_of(job->source), job->output};
    const char *path = variable("TABLE");
    long by_glob = -1, by_kind = -1;
    FILE *table = path ? fopen(path, "re") : NULL;
    char entry[4096 + 32];
    while (table && fgets(entry, sizeof entry, table)) {
        char *tab = strrchr(entry, '\t');
        if (!tab || *entry == '#') continue;
        *tab = 0;
        long mib = strtol(tab + 1, NULL, 10);
        if (!strcmp(entry, names[0]) || (*names[1] && !strcmp(entry, names[1]))) {
            fclose(table);
            return mib;
        }
        if (!strncmp(entry, "kind:", 5) && !strcmp(entry + 5, job->kind)) by_kind = mib;
        for (int i = 0; by_glob < 0 && strpbrk(entry, "*?[") && i < 3; i++)
            if (*names[i] && !fnmatch(entry, names[i], 0)) by_glob = mib;
    }
    if (table) fclose(table);
    return by_glob >= 0 ? by_glob : by_kind >= 0 ? by_kind : number("DEFAULT_MIB", 1024);
}

static int lock(int file, int command, int type, long start, long length) {
    struct flock range = {.l_type = (short)type, .l_start = start, .l_len = length};
    int result;
    do result = fcntl(file, command, &range);
    while (result && errno == EINTR);
    return result;
}

/* Lock up to `wanted` free bytes of [start, start + total). Own locks do not block, so they are
 * recorded in `mine` and skipped. Held ranges are skipped at once: the cost is in their number. */
static long take(int file, long start, long total, long wanted, unsigned char *mine) {
    long got = 0;
    for (long at = 0; at < total && got < wanted;) {
        if (mine[at]) {
            at++;
            continue;
        }
        struct flock range = {.l_type = F_WRLCK, .l_start = start + at, .l_len = total - at};
        if (fcntl(file, F_GETLK, &range)) return got;
        long free_until = range.l_type == F_UNLCK ? total : range.l_start - start;
        for (; at < free_until && got < wanted; at++)
            if (!mine[at] && !lock(file, F_SETLK, F_WRLCK, start + at, 1)) mine[at] = 1, got++;
        if (range.l_type != F_UNLCK && got < wanted)
            at = range.l_len ? range.l_start - start + range.l_len : total;
        if (at < 0) return got;
    }
    return got;
}

/* Wait for one slot and `need` units. One process at a time collects locks and keeps them, so that
 * small compiles cannot starve a large one. */
static int admit(int file, long jobs, long slots, long units, long need) {
    unsigned char *mine = calloc((size_t)(jobs + units) + 2, 1);
    if (!mine || lock(file, F_SETLKW, F_WRLCK, TURNSTILE, 1)) return -1;
    if (slots > jobs) slots = jobs;
    if (need > units) need = units;
    for (long pause_us = FIRST_PAUSE_US;;) {
        slots -= take(file, SLOTS, jobs, slots, mine);
        need -= take(file, MEMORY, units, need, mine + jobs + 1);
        if (slots <= 0 && need <= 0) break;
        usleep((useconds_t)pause_us);
        if (pause_us < LONGEST_PAUSE_US) pause_us += pause_us / 2;
    }
    free(mine);
    return lock(file, F_SETLK, F_UNLCK, TURNSTILE, 1);
}

/* Number of processes killed by the kernel for lack of memory, machine-wide; -1 if unknown. */
static long oom_kills(void) {
    char entry[256];
    long kills = -1;
    FILE *file = fopen("/proc/vmstat", "re");
    while (file && fgets(entry, sizeof entry, file))
        if (sscanf(entry, "oom_kill %ld", &kills) == 1) break;
    if (file) fclose(file);
    return kills;
}

/* --- the log -------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2))) static void add(const char *format, ...) {
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line + used, sizeof line - used, format, values);
    va_end(values);
    if (length > 0 && used + (size_t)length < sizeof line) used += (size_t)length;
}

static void add_text(const char *key, const char *text) {
    add(",\"%s\":\"", key);
    for (; *text && used < sizeof line - 512; text++)
        if (*text == '"' || *text == '\\' || (unsigned char)*text < ' ')
            add("\\u%04x", (unsigned char)*text);
        else
            line[used++] = *text;
    add("\"");
}

static void start_line(const char *event, const struct job *job) {
    char folder[PATH_MAX] = "", path[2 * PATH_MAX];
    if (*job->output != '/' && !getcwd(folder, sizeof folder)) *folder = 0;
    snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", job->output);
    used = 0;
    add("{\"event\":\"%s\",\"id\":\"%s\"", event, job->id);
    add_text("kind", job->kind);
    add_text("output", path);
}

/* Write a whole line at once to a file opened with O_APPEND: lines of writers do not mix. */
static void write_line(int log) {
    add("}\n");
    if (write(log, line, used) < 0) return; /* a full disk must not fail the compile */
}

/* --- running -------------------------------------------------------------------------------- */

static void forward_signal(int signal_number) {
    int code = signal_number;
    if (signal_number == SIGRTMIN + GONE_SIGNAL_OFFSET) {
        if (getppid() == parent) return; /* only a thread of the parent ended */
        code = SIGTERM;
    }
    if (child > 0) kill(child, code);
    else _exit(128 + code);
}

static int run(char **argv, const sigset_t *passed, struct rusage *cost) {
    int status = 0;
    sigprocmask(SIG_BLOCK, passed, NULL);
    pid_t self = getpid();
    child = fork();
    if (child <= 0) { /* the child, or fork failed: execute the compiler */
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            if (getppid() != self) _exit(128 + SIGTERM);
        }
        sigprocmask(SIG_UNBLOCK, passed, NULL);
        execvp(argv[0], argv);
        fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    sigprocmask(SIG_UNBLOCK, passed, NULL);
    while (wait4(child, &status, 0, cost) < 0)
        if (errno != EINTR) return 127 << 8;
    child = 0;
    return status;
}

/* Forward signals to the compiler, and receive one when the parent ends. */
static void install_handlers(sigset_t *passed) {
    struct sigaction action = {.sa_handler = forward_signal}, earlier;
    int list[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGRTMIN + GONE_SIGNAL_OFFSET};
    sigemptyset(passed);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        /* keep ignored signals (nohup) ignored */
        if (sigaction(list[i], NULL, &earlier) || earlier.sa_handler == SIG_IGN) continue;
        sigaddset(passed, list[i]);
        sigaction(list[i], &action, NULL);
    }
    prctl(PR_SET_PDEATHSIG, SIGRTMIN + GONE_SIGNAL_OFFSET);
    if (getppid() != parent) _exit(128 + SIGTERM);
}

static double seconds(struct timeval time) {
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

/* Run the command once and log it. Return true if it was killed for lack of memory. */
static int attempt(char **command, const struct job *job, const struct settings *settings, long mib,
                   long need, const sigset_t *passed, double waited, int times, int *status) {
    struct rusage cost = {0};
    long kills = oom_kills();
    double began = now(CLOCK_REALTIME), clock = now(CLOCK_MONOTONIC);
    start_line("begin", job);
    add(",\"start\":%.3f", began);
    write_line(settings->log);
    *status = run(command, passed, &cost);
    double wall = now(CLOCK_MONOTONIC) - clock;
    int code = WIFSIGNALED(*status) ? WTERMSIG(*status) : 0;
    int exit_status = code ? -1 : WEXITSTATUS(*status);
    /* A driver whose compiler was killed only returns exit status 1; the kill counter of the kernel
     * distinguishes this from an ordinary error. If both coincide, there is a needless retry. */
    int killed = code == SIGKILL || (exit_status > 0 && kills >= 0 && oom_kills() > kills);
    start_line("end", job);
    add_text("language", job->language);
    add_text("source", job->source);
    add_text("tool", job->tool);
    add(",\"start\":%.3f,\"end\":%.3f,\"wall_s\":%.4f", began, began + wall, wall);
    add(",\"user_s\":%.4f,\"system_s\":%.4f,\"rss_kib\":%ld", seconds(cost.ru_utime),
        seconds(cost.ru_stime), cost.ru_maxrss);
    add(",\"waited_s\":%.4f,\"expected_mib\":%ld,\"units\":%ld,\"attempt\":%d", waited, mib,
        need < settings->units ? need : settings->units, times);
    add(",\"out_of_memory\":%s,\"retried\":%s", killed ? "true" : "false",
        killed && times == 1 ? "true" : "false");
    add(",\"status\":%d,\"signal\":%d", exit_status, code);
    write_line(settings->log);
    return killed;
}

/* Schedule and run the command; retry it alone if memory was short. Returns only on failure. */
static void metered(char **command, struct job *job, const struct settings *settings) {
    double since = now(CLOCK_MONOTONIC);
    long mib = expected_mib(job), need = mib / settings->unit_mib + (mib % settings->unit_mib != 0);
    sigset_t passed;
    int status = 0;
    if (need < 1) need = 1;
    parent = getppid();
    if (setenv("TORCHYARD_METER_INSIDE", "1", 1) ||
        admit(settings->locks, settings->jobs, 1, settings->units, need))
        return;
    snprintf(job->id, sizeof job->id, "%ld-%.6f", (long)getpid(), now(CLOCK_REALTIME));
    install_handlers(&passed);
    for (int times = 1; times <= 2; times++) {
        double waited = now(CLOCK_MONOTONIC) - since;
        if (!attempt(command, job, settings, mib, need, &passed, waited, times, &status)) break;
        /* Release everything first, so that two of these cannot deadlock. */
        since = now(CLOCK_MONOTONIC);
        need = settings->units;
        long slots = need ? 1 : settings->jobs;
        if (times == 1 && (lock(settings->locks, F_SETLK, F_UNLCK, 0, 0) ||
                           admit(settings->locks, settings->jobs, slots, settings->units, need)))
            break;
    }
    if (!WIFSIGNALED(status)) exit(WEXITSTATUS(status));
    int code = WTERMSIG(status);
    if (code == SIGINT || code == SIGTERM || code == SIGHUP) { /* ninja and make handle these */
        signal(code, SIG_DFL);
        raise(code);
    }
    exit(128 + code);
}

/* sccache fails for unknown compilers: use a cache only for languages that all caches support. */
static int cached(const char *language) {
    return language && (!strcmp(language, "c") || !strcmp(language, "c++") || !strcmp(language, "cuda"));
}

/* Append the options that TORCHYARD_METER_OPTIONS has for this source: lines of a glob, a tab and
 * words. The first matching glob is used; without one the command is unchanged. */
static char **with_options(char **command, const char *source) {
    const char *text = variable("OPTIONS");
    char *lines = text ? strdup(text) : NULL, *rest = lines, *next;
    while (rest && *rest) {
        next = strchr(rest, '\n');
        if (next) *next++ = 0;
        char *tab = strchr(rest, '\t');
        if (tab) *tab++ = 0;
        if (tab && !fnmatch(rest, basename_of(source), 0)) {
            size_t words = 0, more = strlen(tab) / 2 + 2;
            while (command[words]) words++;
            char **longer = calloc(words + more, sizeof *longer);
            if (!longer) return command;
            memcpy(longer, command, words * sizeof *longer);
            for (char *word = strtok(tab, " "); word; word = strtok(NULL, " ")) longer[words++] = word;
            return longer;
        }
        rest = next;
    }
    free(lines);
    return command;
}

int main(int argc, char **argv) {
    char **command = argv;
    struct job job = {0};
    int masquerading = strcmp(basename_of(argv[0]), "meter") != 0;
    if (masquerading) {
        char *program = next_program(basename_of(argv[0]));
        if (!program) {
            fprintf(stderr, "%s: no program of this name on PATH after the meter\n", argv[0]);
            return 127;
        }
        argv[0] = program;
    } else if (argc < 2) {
        fprintf(stderr, "usage: meter COMPILER [ARGUMENT]...\n");
        return 2;
    } else
        command = argv + 1;

    const char *log = variable("LOG"), *locks = variable("LOCKS"), *cache = variable("CACHE");
    struct settings settings = {-1, -1, number("JOBS", 0), number("UNITS", 0), number("UNIT_MIB", 64)};
    if (log && locks && settings.jobs > 0 && settings.unit_mib > 0 && !variable("INSIDE") &&
        parse_command(command, &job)) {
        int compiles = !strcmp(job.kind, "compile");
        char **longer = calloc((size_t)argc + 2, sizeof *longer);
        if (longer && cache && compiles && cached(job.language) &&
            strcmp(basename_of(command[0]), basename_of(cache))) {
            longer[0] = (char *)cache;
            /* argv ends with NULL, and so does the copied part. */
            memcpy(longer + 1, command, (size_t)(argc + 1 - (command - argv)) * sizeof *longer);
            job.tool = basename_of(cache);
            command = longer;
        }
        if (compiles) command = with_options(command, job.source);
        settings.log = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        settings.locks = open(locks, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (settings.log >= 0 && settings.locks >= 0) metered(command, &job, &settings);
    }
    execvp(command[0], command);
    fprintf(stderr, "%s: %s\n", command[0], strerror(errno));
    return 127;
}
