"""The scan of many tensors on a GPU in one launch, written in Triton.

Imported only where Triton is installed. Programs take chunks of the tensors in turn, so that one
launch serves a hundred small tensors or one large one alike, and add what they saw to the row of
the tensor. Knows memory and widths, no tensors.
"""

import triton
import triton.language as tl

BLOCK = 2048
"""Elements that a program holds at once."""
CHUNK = 32 * BLOCK
"""Elements of one tensor that a program takes before it looks for more work."""
FIELDS = 7
"""Of a row: two halves of the hash, zeros, elements like the first, unchanged ones, bits in use, and
the first element."""


@triton.jit
def _either(left, right):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    return left | right


@triton.jit
def scan_chunks(  # type: ignore[no-untyped-def] # noqa: ANN201
    table,  # noqa: ANN001
    rows,  # noqa: ANN001
    tensors,  # noqa: ANN001
    chunks,  # noqa: ANN001
    BITS: tl.constexpr,  # noqa: N803
    COMPARED: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    CHUNK: tl.constexpr,  # noqa: N803
):
    """Add chunks of tensors to their rows.

    `table` has five columns of `tensors` entries: address, elements, the number of the last chunk
    plus one, the row, and the address of the earlier bits.
    """
    for chunk in range(tl.program_id(0), chunks, tl.num_programs(0)):
        # The first tensor whose chunks end behind this one.
        low = 0
        high = tensors - 1
        while low < high:
            middle = (low + high) // 2
            if tl.load(table + 2 * tensors + middle) > chunk:
                high = middle
            else:
                low = middle + 1
        began = tl.load(table + 2 * tensors + low - 1, mask=low > 0, other=0)
        count = tl.load(table + tensors + low)
        row = tl.load(table + 3 * tensors + low)
        start = (chunk - began) * CHUNK
        end = tl.minimum(count, start + CHUNK)
        address = tl.load(table + low)
        earlier_address = tl.load(table + 4 * tensors + low)
        if BITS == 8:
            memory = address.to(tl.pointer_type(tl.uint8))
            earlier = earlier_address.to(tl.pointer_type(tl.uint8))
        elif BITS == 16:
            memory = address.to(tl.pointer_type(tl.uint16))
            earlier = earlier_address.to(tl.pointer_type(tl.uint16))
        elif BITS == 32:
            memory = address.to(tl.pointer_type(tl.uint32))
            earlier = earlier_address.to(tl.pointer_type(tl.uint32))
        else:
            memory = address.to(tl.pointer_type(tl.uint64))
            earlier = earlier_address.to(tl.pointer_type(tl.uint64))
        first = tl.load(memory)
        lower = tl.zeros((BLOCK,), dtype=tl.uint32)
        upper = tl.zeros((BLOCK,), dtype=tl.uint32)
        zeros = tl.zeros((BLOCK,), dtype=tl.int32)
        alike = tl.zeros((BLOCK,), dtype=tl.int32)
        same = tl.zeros((BLOCK,), dtype=tl.int32)
        used = tl.zeros((BLOCK,), dtype=tl.uint64 if BITS == 64 else tl.uint32)
        for at in range(start, end, BLOCK):
            places = at + tl.arange(0, BLOCK)
            inside = places < end
            # What lies beyond the end counts as like the first, and is taken off again below.
            words = tl.load(memory + places, mask=inside, other=0)
            position = places.to(tl.uint32) * 0x9E3779B1
            if BITS == 64:
                low_word = words.to(tl.uint32)
                high_word = (words >> 32).to(tl.uint32)
                mixed = (low_word + position) ^ (high_word * 0x85EBCA77)
            else:
                mixed = words.to(tl.uint32) + position
            product = mixed * 0xC2B2AE3D
            over = tl.umulhi(mixed, tl.full((BLOCK,), 0xC2B2AE3D, tl.uint32))
            product = tl.where(inside, product ^ over, 0)
            lower += product
            upper += (product >> 11) ^ (product * 0x27D4EB2F)
            zeros += (inside & (words == 0)).to(tl.int32)
            alike += (inside & (words == first)).to(tl.int32)
            used |= words.to(tl.uint64 if BITS == 64 else tl.uint32)
            if COMPARED:
                was = tl.load(earlier + places, mask=inside, other=0)
                same += (inside & (words == was)).to(tl.int32)
        found = rows + row * 7
        tl.atomic_add(found, tl.sum(lower.to(tl.int64)), sem="relaxed")
        tl.atomic_add(found + 1, tl.sum(upper.to(tl.int64)), sem="relaxed")
        tl.atomic_add(found + 2, tl.sum(zeros).to(tl.int64), sem="relaxed")
        tl.atomic_add(found + 3, tl.sum(alike).to(tl.int64), sem="relaxed")
        if COMPARED:
            tl.atomic_add(found + 4, tl.sum(same).to(tl.int64), sem="relaxed")
        tl.atomic_or(found + 5, tl.reduce(used, 0, _either).to(tl.int64), sem="relaxed")
        if chunk == began:
            tl.store(found + 6, first.to(tl.int64))
