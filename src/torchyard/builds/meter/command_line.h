/* Parse the command line of a compiler: compile, link or probe; output and source.
 *
 * Supports gcc, clang and nvcc, with or without a compiler cache. Part of meter.c.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

struct job {
    const char *kind, *language, *tool, *output, *source;
    char made_output[PATH_MAX]; /* default output name without -o */
    char id[64];                /* connects begin and end in the log */
};

static const char *basename_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const char *language_of(const char *name) {
    static const char *const languages[][2] = {
        {"c", "c"}, {"i", "c"}, {"cc", "c++"}, {"cpp", "c++"}, {"cxx", "c++"}, {"c++", "c++"},
        {"C", "c++"}, {"ii", "c++"}, {"cu", "cuda"}, {"hip", "hip"}, {"s", "assembler"},
        {"S", "assembler"}, {"sx", "assembler"}, {"asm", "assembler"}, {"m", "objective-c"},
        {"mm", "objective-c++"}, {"f", "fortran"}, {"F", "fortran"}, {"for", "fortran"},
        {"f90", "fortran"}, {"F90", "fortran"}, {"f95", "fortran"}, {"f03", "fortran"}};
    const char *dot = strrchr(basename_of(name), '.');
    for (size_t i = 0; dot && i < sizeof languages / sizeof *languages; i++)
        if (!strcmp(dot + 1, languages[i][0])) return languages[i][1];
    return NULL;
}

static int is_any(const char *word, const char *const *list) {
    for (; *list; list++)
        if (!strcmp(word, *list)) return 1;
    return 0;
}

/* Return 0 for a probe (a version, a search path, preprocessing), which is not measured. */
static int parse_command(char **argv, struct job *job) {
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
