/* Scan the memory of a tensor in one pass, for all patterns.
 *
 * Compiled on the user's machine if it has a compiler; otherwise TorchScanner in cpu_scan.py does the
 * same with torch operators. Independent of torch.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 256

struct scan {
    uint64_t hash;        /* depends on the order of the elements */
    uint64_t count;
    uint64_t zeros;       /* elements whose bits are all zero */
    uint64_t like_first;  /* elements equal to the first */
    uint64_t unchanged;   /* elements equal to their previous value; 0 if unknown */
    uint64_t first_bits;
    uint64_t any_bits;    /* bitwise OR of all elements */
};

struct range {
    int64_t low, high;
};

static uint32_t keys[BLOCK];

/* Odd multipliers, one per position in a block, so that the hash depends on the order. */
__attribute__((constructor)) static void make_keys(void) {
    uint64_t state = 0;
    for (int i = 0; i < BLOCK; i++) {
        uint64_t z = state += 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        keys[i] = (uint32_t)(z ^ (z >> 31)) | 1u;
    }
}

#define MOST8 INT8_MAX
#define LEAST8 INT8_MIN
#define MOST16 INT16_MAX
#define LEAST16 INT16_MIN
#define MOST32 INT32_MAX
#define LEAST32 INT32_MIN
#define MOST64 INT64_MAX
#define LEAST64 INT64_MIN

#define WORD uint8_t
#define SIGNED int8_t
#define BITS 8
#define NAME(what) what##8
#include "scan_width.h"

#define WORD uint16_t
#define SIGNED int16_t
#define BITS 16
#define NAME(what) what##16
#include "scan_width.h"

#define WORD uint32_t
#define SIGNED int32_t
#define BITS 32
#define NAME(what) what##32
#include "scan_width.h"

#define WORD uint64_t
#define SIGNED int64_t
#define BITS 64
#define NAME(what) what##64
#include "scan_width.h"

#define EACH_WIDTH(call8, call16, call32, call64) \
    switch (bits) { \
    case 8: call8; break; \
    case 16: call16; break; \
    case 32: call32; break; \
    case 64: call64; break; \
    }

/* `bits` is the width of an element, 8 to 64. */
void scan(const void *x, const void *before, size_t n, int bits, struct scan *out) {
    EACH_WIDTH(scan8(x, before, n, out), scan16(x, before, n, out), scan32(x, before, n, out),
               scan64(x, before, n, out))
}

/* `mantissa` is 0 for signed integers and -1 for unsigned ones. */
void range(const void *x, size_t n, int bits, int mantissa, struct range *out) {
    EACH_WIDTH(range8(x, n, mantissa, out), range16(x, n, mantissa, out),
               range32(x, n, mantissa, out), range64(x, n, mantissa, out))
}

int whole_numbers(const void *x, size_t n, int bits, int mantissa, int bias) {
    int whole = 0;
    EACH_WIDTH(whole = 0, whole = whole16(x, n, mantissa, bias),
               whole = whole32(x, n, mantissa, bias), whole = whole64(x, n, mantissa, bias))
    return whole;
}

/* Whether the memory repeats with a period: slices along a dimension are equal. */
int repeats(const char *x, size_t size, size_t period) {
    return period && size > period && size % period == 0 && !memcmp(x, x + period, size - period);
}

/* Whether all elements of each run are equal: constant along the last dimensions. */
int constant_runs(const char *x, size_t count, size_t width, size_t run) {
    if (run < 2 || !width || count % run) return 0;
    for (size_t at = 0; at < count; at += run)
        if (memcmp(x + at * width, x + (at + 1) * width, (run - 1) * width)) return 0;
    return 1;
}
