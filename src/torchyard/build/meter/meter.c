/* Compiler launcher of Torchyard: admits compiles by memory, measures each one, logs it.
 *
 *   meter g++ -c a.cpp -o a.o     as a launcher (CMAKE_CXX_COMPILER_LAUNCHER)
 *   g++ -c a.cpp -o a.o           under another name: runs the next g++ on PATH
 *
 * It must never fail a build: whatever is missing or broken here, the compiler is simply executed.
 * Variables, all starting with TORCHYARD_METER_: LOG, LOCKS (files), JOBS, UNITS, UNIT_MIB,
 * DEFAULT_MIB, TABLE (file), CACHE (program put before a compiler found by name), INSIDE (guard).
 *
 * Locks are POSIX record locks on single bytes of one file: they end with the process that holds
 * them, even with kill -9, and a child does not inherit them.
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

enum { TURNSTILE = 0, SLOTS = 1, MEMORY = 1 << 20, LINE_BYTES = 65536 };
enum { FIRST_PAUSE_US = 2000, LONGEST_PAUSE_US = 20000, GONE_SIGNAL_OFFSET = 7 };

struct job {
    const char *kind, *language, *tool, *output, *source;
    char made_output[PATH_MAX]; /* the compiler's own choice of name when there is no -o */
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

static const char *basename_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* --- what is asked for --------------------------------------------------------------------- */

static const char *language_of(const char *name) {
    static const char *const known[][2] = {
        {"c", "c"}, {"i", "c"}, {"cc", "c++"}, {"cpp", "c++"}, {"cxx", "c++"}, {"c++", "c++"},
        {"C", "c++"}, {"ii", "c++"}, {"cu", "cuda"}, {"hip", "hip"}, {"s", "assembler"},
        {"S", "assembler"}, {"sx", "assembler"}, {"asm", "assembler"}, {"m", "objective-c"},
        {"mm", "objective-c++"}, {"f", "fortran"}, {"F", "fortran"}, {"for", "fortran"},
        {"f90", "fortran"}, {"F90", "fortran"}, {"f95", "fortran"}, {"f03", "fortran"}};
    const char *dot = strrchr(basename_of(name), '.');
    for (size_t i = 0; dot && i < sizeof known / sizeof *known; i++)
        if (!strcmp(dot + 1, known[i][0])) return known[i][1];
    return NULL;
}

static int is_any(const char *word, const char *const *list) {
    for (; *list; list++)
        if (!strcmp(word, *list)) return 1;
    return 0;
}

/* False for a probe (a version, a search path, preprocessing), which is not worth measuring. */
static int understand(char **argv, struct job *job) {
    static const char *const compiling[] = {"-c", "-S", "--compile", "-dc", "--device-c", "-dw",
                                            "-ptx", "-cubin", "-fatbin", NULL};
    static const char *const probing[] = {"-E", "-M", "-MM", "--version", "-###", "--help",
                                          "-dumpversion", "-dumpmachine", "-dumpspecs", NULL};
    static const char *const caches[] = {"ccache", "sccache", "distcc", "icecc", NULL};
    static const char *const valued[] = {"-MF", "-MT", "-MQ", "-I", "-isystem", "-include", "-L",
                                         "-x", "-Xlinker", "-Xcompiler", "-D", "-U", NULL};
    int compiles = 0, cached = argv[1] && is_any(basename_of(argv[0]), caches);
    job->tool = basename_of(argv[0]);
    int nvcc = !strncmp(basename_of(argv[cached]), "nvcc", 4);
    for (char **at = argv + 1 + cached; *at; at++) {
        const char *word = *at, *language;
        if (is_any(word, probing) || !strncmp(word, "-print-", 7)) return 0;
        if (is_any(word, compiling))
            compiles = 1;
        else if ((!strcmp(word, "-o") || !strcmp(word, "--output-file")) && at[1])
            job->output = *++at;
        else if (!strncmp(word, "-o", 2) && word[2] && !nvcc)
            job->output = word + 2;
        else if (is_any(word, valued) && at[1])
            at++;
        else if (*word != '-' && (language = language_of(word)))
            job->source = word, job->language = language;
    }
    job->kind = compiles ? "compile" : "link";
    if (compiles && !job->output && job->source) {
        const char *name = basename_of(job->source);
        snprintf(job->made_output, sizeof job->made_output, "%.*s.o",
                 (int)(strrchr(name, '.') - name), name);
        job->output = job->made_output;
    }
    if (!job->language) job->language = "";
    if (!job->source) job->source = "";
    return job->output != NULL;
}

/* MiB expected: the exact name of output or source, else the first glob, else its kind. */
static long expected_mib(const struct job *job) {
    const char *path = variable("TABLE"), *names[3] = {basename_of(job->output), basename_of(job->source), job->output};
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

/* --- the program behind our name ------------------------------------------------------------ */

/* The next program of this name on PATH, behind the folder that holds ours. NULL: none. */
static char *next_program(const char *name) {
    static char found[PATH_MAX];
    struct stat self, other;
    const char *execfn = (const char *)getauxval(AT_EXECFN), *path = getenv("PATH");
    if (!path || !execfn || stat(execfn, &self)) return NULL;
    for (int ours_seen = 0; ours_seen < 2; ours_seen++) /* second round: ours is not on PATH */
        for (const char *at = path, *end; at; at = *end ? end + 1 : NULL) {
            end = strchrnul(at, ':');
            snprintf(found, sizeof found, "%.*s/%s", end == at ? 1 : (int)(end - at),
                     end == at ? "." : at, name);
            if (stat(found, &other) || !S_ISREG(other.st_mode) || access(found, X_OK)) continue;
            if (other.st_dev == self.st_dev && other.st_ino == self.st_ino)
                ours_seen = 1;
            else if (ours_seen)
                return found;
        }
    return NULL;
}

/* --- admission ------------------------------------------------------------------------------ */

static int lock(int file, int command, int type, long start, long length) {
    struct flock range = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    int result;
    do result = fcntl(file, command, &range);
    while (result && errno == EINTR);
    return result;
}

/* Take up to `wanted` free bytes of [start, start + total); ours do not block us, so skip them by
 * remembering them in `mine`. Leaps over held ranges, so the cost follows the number of holders. */
static long take(int file, long start, long total, long wanted, unsigned char *mine) {
    long got = 0;
    for (long at = 0; at < total && got < wanted;) {
        if (mine[at]) {
            at++;
            continue;
        }
        struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start + at, .l_len = total - at};
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

/* Wait for one slot and `need` units. One process at a time gathers and keeps what it has got, so
 * a big compile cannot be starved by small ones. */
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

/* Processes the kernel has killed for want of memory, on the whole machine; -1: it does not say. */
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

/* Begin or continue a record; the caller adds what it knows and calls write_line. */
static void start_line(const char *event, const struct job *job, const char *id) {
    char folder[PATH_MAX] = "", path[2 * PATH_MAX];
    if (*job->output != '/' && !getcwd(folder, sizeof folder)) *folder = 0;
    snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", job->output);
    used = 0;
    add("{\"event\":\"%s\",\"id\":\"%s\"", event, id);
    add_text("kind", job->kind);
    add_text("output", path);
}

static void write_line(int log) {
    add("}\n");
    if (write(log, line, used) < 0) return; /* a full disk is the build's trouble, not ours */
}

/* --- running -------------------------------------------------------------------------------- */

static void pass_on(int signal_number) {
    int code = signal_number;
    if (signal_number == SIGRTMIN + GONE_SIGNAL_OFFSET) {
        if (getppid() == parent) return; /* only a thread of the parent has ended */
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
    if (child <= 0) { /* the child, or no child to be had: become the compiler */
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

static double seconds(struct timeval time) { return (double)time.tv_sec + (double)time.tv_usec / 1e6; }

int main(int argc, char **argv) {
    char **command = argv, id[64];
    int masquerading = strcmp(basename_of(argv[0]), "meter") != 0;
    struct job job = {0};
    if (masquerading) {
        const char *name = basename_of(argv[0]);
        char *program = next_program(name);
        if (!program) {
            fprintf(stderr, "%s: no such program behind Torchyard's meter on PATH\n", name);
            return 127;
        }
        argv[0] = program;
    } else if (argc < 2) {
        fprintf(stderr, "usage: meter COMPILER [ARGUMENT]...\n");
        return 2;
    } else
        command = argv + 1;

    const char *log_path = variable("LOG"), *locks_path = variable("LOCKS"), *cache = variable("CACHE");
    long jobs = number("JOBS", 0), units = number("UNITS", 0), unit_mib = number("UNIT_MIB", 64);
    int log = -1, locks = -1, known = 0;
    if (log_path && locks_path && jobs > 0 && unit_mib > 0 && !variable("INSIDE") &&
        (known = understand(command, &job))) {
        log = open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        locks = open(locks_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    }
    if (known && masquerading && cache && !strcmp(job.kind, "compile")) {
        char **longer = calloc((size_t)argc + 2, sizeof *longer);
        if (longer) {
            longer[0] = (char *)cache;
            memcpy(longer + 1, argv, (size_t)argc * sizeof *longer);
            job.tool = basename_of(cache);
            command = longer;
        }
    }
    double asked = now(CLOCK_MONOTONIC);
    long mib = 0, need = 0;
    if (log >= 0 && locks >= 0) {
        mib = expected_mib(&job);
        need = mib / unit_mib + (mib % unit_mib != 0);
        if (need < 1) need = 1;
    }
    parent = getppid();
    if (log < 0 || locks < 0 || setenv("TORCHYARD_METER_INSIDE", "1", 1) ||
        admit(locks, jobs, 1, units, need)) {
        execvp(command[0], command);
        fprintf(stderr, "%s: %s\n", command[0], strerror(errno));
        return 127;
    }
    snprintf(id, sizeof id, "%ld-%.6f", (long)getpid(), now(CLOCK_REALTIME));

    sigset_t passed;
    struct sigaction action = {.sa_handler = pass_on};
    int list[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGRTMIN + GONE_SIGNAL_OFFSET};
    sigemptyset(&passed);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct sigaction earlier; /* a signal that is ignored (nohup) stays ignored */
        if (sigaction(list[i], NULL, &earlier) || earlier.sa_handler == SIG_IGN) continue;
        sigaddset(&passed, list[i]);
        sigaction(list[i], &action, NULL);
    }
    prctl(PR_SET_PDEATHSIG, SIGRTMIN + GONE_SIGNAL_OFFSET);
    if (getppid() != parent) return 128 + SIGTERM;

    int status = 0;
    for (int attempt = 1; attempt <= 2; attempt++) {
        struct rusage cost = {0};
        double waited = now(CLOCK_MONOTONIC) - asked, began = now(CLOCK_REALTIME);
        long kills = oom_kills();
        start_line("begin", &job, id);
        add(",\"start\":%.3f", began);
        write_line(log);
        double clock = now(CLOCK_MONOTONIC);
        status = run(command, &passed, &cost);
        double wall = now(CLOCK_MONOTONIC) - clock;
        int failed = WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) != 0;
        /* A driver whose compiler proper was killed only says exit status 1; the kernel's count of
         * such kills tells it from an ordinary error. Two at once: a needless second try at worst. */
        int out_of_memory = failed && (WIFSIGNALED(status) || (kills >= 0 && oom_kills() > kills));
        int again = out_of_memory && attempt == 1;
        start_line("end", &job, id);
        add_text("language", job.language);
        add_text("source", job.source);
        add_text("tool", job.tool);
        add(",\"start\":%.3f,\"end\":%.3f,\"wall_s\":%.4f,\"user_s\":%.4f,\"system_s\":%.4f,\"rss_kib\":%ld",
            began, began + wall, wall, seconds(cost.ru_utime), seconds(cost.ru_stime), cost.ru_maxrss);
        add(",\"waited_s\":%.4f,\"expected_mib\":%ld,\"units\":%ld,\"attempt\":%d,\"out_of_memory\":%s,\"retried\":%s",
            waited, mib, need < units ? need : units, attempt, out_of_memory ? "true" : "false", again ? "true" : "false");
        add(",\"status\":%d,\"signal\":%d", WIFSIGNALED(status) ? -1 : WEXITSTATUS(status),
            WIFSIGNALED(status) ? WTERMSIG(status) : 0);
        write_line(log);
        if (!again) break;
        /* Alone: give everything back first, so that two of these cannot wait for each other. */
        asked = now(CLOCK_MONOTONIC);
        need = units;
        if (lock(locks, F_SETLK, F_UNLCK, 0, 0) || admit(locks, jobs, units ? 1 : jobs, units, need)) break;
    }
    if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
    int code = WTERMSIG(status);
    if (code == SIGINT || code == SIGTERM || code == SIGHUP) {
        signal(code, SIG_DFL);
        raise(code);
    }
    return 128 + code;
}
