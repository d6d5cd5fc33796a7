/* Scan the memory of a tensor in one pass, for all patterns.
 *
 * Compiled on the user's machine if it has a compiler; otherwise TorchScanner in cpu_scan.py does the
 * same with torch operators. Independent of torch.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The scans are compiled for several instruction sets, and the loader chooses one. The caller defines this only where
 * compiler and C library support it. */
#ifdef CLONED
#define EXPORTED __attribute__((target_clones("avx2", "default")))
#else
#define EXPORTED
#endif
#define INLINE static inline __attribute__((always_inline))

#define BLOCK 2048 /* bytes */
#define BLOCK_WORDS (BLOCK / 4)

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

/* Elements at any address: the memory of a tensor need not be aligned. */
typedef uint16_t __attribute__((may_alias, aligned(1))) word16;
typedef uint32_t __attribute__((may_alias, aligned(1))) word32;
typedef uint64_t __attribute__((may_alias, aligned(1))) word64;

static uint32_t keys[BLOCK_WORDS];

/* Odd multipliers, one per four bytes of a block, so that the hash depends on the order. */
__attribute__((constructor)) static void make_keys(void) {
    uint64_t state = 0;
    for (int i = 0; i < BLOCK_WORDS; i++) {
        uint64_t z = state += 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        keys[i] = (uint32_t)(z ^ (z >> 31)) | 1u;
    }
}

#define HASH_START(n) ((uint64_t)(n) * 0xff51afd7ed558ccdull)

INLINE uint64_t mix(uint64_t hash, uint64_t sum) {
    hash = (hash ^ sum) * 0x9ddfea08eb382d69ull;
    return hash ^ hash >> 29;
}

/* Add up to BLOCK bytes to a hash. */
INLINE uint64_t add_block(uint64_t hash, const char *p, size_t size) {
    const word32 *x = (const word32 *)p;
    size_t words = size / 4, rest = size % 4;
    uint64_t sum = 0;
    for (size_t j = 0; j < words; j++) sum += (uint64_t)x[j] * keys[j];
    if (rest) {
        uint32_t last = 0;
        memcpy(&last, p + size - rest, rest);
        sum += (uint64_t)last * keys[words];
    }
    return mix(hash, sum);
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
#define MEMORY uint8_t
#define SIGNED int8_t
#define BITS 8
#define TALLY uint16_t
#define NAME(what) what##8
#include "scan_width.h"

#define WORD uint16_t
#define MEMORY word16
#define SIGNED int16_t
#define BITS 16
#define TALLY uint16_t
#define NAME(what) what##16
#include "scan_width.h"

#define WORD uint32_t
#define MEMORY word32
#define SIGNED int32_t
#define BITS 32
#define TALLY uint32_t
#define NAME(what) what##32
#include "scan_width.h"

#define WORD uint64_t
#define MEMORY word64
#define SIGNED int64_t
#define BITS 64
#define TALLY uint64_t
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
EXPORTED void scan(const void *x, const void *before, size_t n, int bits, struct scan *out) {
    EACH_WIDTH(scan8(x, before, n, out), scan16(x, before, n, out), scan32(x, before, n, out),
               scan64(x, before, n, out))
}

/* The hash of a scan. */
EXPORTED uint64_t hash(const char *x, size_t n, int bits) {
    size_t size = n * (size_t)bits / 8;
    uint64_t hash = HASH_START(n);
    for (size_t at = 0; at < size; at += BLOCK)
        hash = add_block(hash, x + at, size - at < BLOCK ? size - at : BLOCK);
    return hash;
}

/* Elements whose bits under a mask are these. */
EXPORTED uint64_t count(const void *x, size_t n, int bits, uint64_t mask, uint64_t like) {
    uint64_t found = 0;
    EACH_WIDTH(found = count8(x, n, mask, like), found = count16(x, n, mask, like),
               found = count32(x, n, mask, like), found = count64(x, n, mask, like))
    return found;
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
