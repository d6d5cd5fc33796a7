/* Scan functions for one element width; scan.c includes this once per width and sets WORD, MEMORY,
 * SIGNED, BITS, NAME and TALLY: MEMORY is WORD at any address, TALLY counts the elements of a block.
 *
 * All functions work on bits: values are compared and ordered by their bits, and a fraction is detected
 * in exponent and mantissa. So one implementation serves all dtypes of a width.
 */

/* Whether a floating-point number has a fraction or is not finite. */
INLINE int NAME(fraction)(WORD v, int mantissa, int bias) {
    WORD exponent_mask = (WORD)((((WORD)1 << (BITS - 1 - mantissa)) - 1));
    int e = (int)((v >> mantissa) & exponent_mask) - bias;
    WORD magnitude = (WORD)(v & (WORD)~((WORD)1 << (BITS - 1)));
    if (e < 0) return magnitude != 0;
    if (e > bias) return 1; /* infinity or NaN */
    if (e >= mantissa) return 0;
    return (v & (WORD)(((WORD)1 << (mantissa - e)) - 1)) != 0;
}

INLINE void NAME(scan)(const MEMORY *x, const MEMORY *before, size_t n, struct scan *out) {
    const size_t most = BLOCK / sizeof(WORD);
    uint64_t hash = HASH_START(n), zeros = 0, like = 0, same = 0;
    WORD any = 0, first = n ? x[0] : 0;
    for (size_t at = 0; at < n; at += most) {
        const MEMORY *p = x + at;
        size_t count = n - at < most ? n - at : most;
        TALLY z = 0, l = 0, s = 0;
#if BITS == 32
        uint64_t sum = 0;
#else
        hash = add_block(hash, (const char *)p, count * sizeof(WORD));
#endif
        for (size_t j = 0; j < count; j++) {
#if BITS == 32
            sum += (uint64_t)p[j] * keys[j];
#endif
            z += p[j] == 0;
            l += p[j] == first;
            any |= p[j];
        }
#if BITS == 32
        hash = mix(hash, sum); /* as add_block, in the same loop */
#endif
        zeros += z;
        like += l;
        if (before) {
            for (size_t j = 0; j < count; j++) s += p[j] == before[at + j];
            same += s;
        }
    }
    out->hash = hash;
    out->count = n;
    out->zeros = zeros;
    out->like_first = like;
    out->unchanged = same;
    out->first_bits = first;
    out->any_bits = any;
}

INLINE uint64_t NAME(count)(const MEMORY *x, size_t n, uint64_t mask, uint64_t like) {
    const size_t most = BLOCK / sizeof(WORD);
    uint64_t found = 0;
    for (size_t at = 0; at < n; at += most) {
        size_t count = n - at < most ? n - at : most;
        TALLY f = 0;
        for (size_t j = 0; j < count; j++) f += (WORD)(x[at + j] & (WORD)mask) == (WORD)like;
        found += f;
    }
    return found;
}

/* The smallest and largest number; floating-point numbers as ordered bits. */
INLINE void NAME(range)(const MEMORY *x, size_t n, int mantissa, struct range *out) {
    SIGNED low = NAME(MOST), high = NAME(LEAST);
    WORD flip = mantissa < 0 ? (WORD)((WORD)1 << (BITS - 1)) : 0; /* unsigned, as signed ones */
    for (size_t j = 0; j < n; j++) {
        WORD v = x[j];
        /* Negative floats are ordered backwards by their bits. */
        SIGNED o = (SIGNED)(v ^ (mantissa > 0 ? (WORD)((WORD)((SIGNED)v >> (BITS - 1)) >> 1) : flip));
        low = o < low ? o : low;
        high = o > high ? o : high;
    }
    out->low = low;
    out->high = high;
}

/* Whether no float of these has a fraction. Ends at the first that has. */
INLINE int NAME(whole)(const MEMORY *x, size_t n, int mantissa, int bias) {
    for (size_t j = 0; j < n; j++)
        if (NAME(fraction)(x[j], mantissa, bias)) return 0;
    return 1;
}
#undef WORD
#undef MEMORY
#undef SIGNED
#undef BITS
#undef TALLY
#undef NAME
