"""The Triton kernel that scans many tensors on a GPU in one launch.

Imported only where Triton is installed. Programs process chunks of the tensors in turn, so that
one launch serves a hundred small tensors or one large one, and add their results to the row of the
tensor.
"""

import triton
import triton.language as tl

BLOCK = 1024
"""Elements that a program processes at once."""
CHUNK = 64 * BLOCK
"""Elements of one tensor that a program processes before it takes the next chunk."""


@triton.jit
def _either(left, right):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    return left | right


@triton.jit(do_not_specialize=["tensors", "chunks"])
def scan_chunks(  # type: ignore[no-untyped-def] # noqa: ANN201
    addresses,  # noqa: ANN001
    table,  # noqa: ANN001
    rows,  # noqa: ANN001
    tensors,  # noqa: ANN001
    chunks,  # noqa: ANN001
    BITS: tl.constexpr,  # noqa: N803
    COMPARED: tl.constexpr,  # noqa: N803
    ALIGNED: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    CHUNK: tl.constexpr,  # noqa: N803
):
    """Add chunks of tensors to their rows.

    `table` has four columns of `tensors` entries: elements, the number of the last chunk plus one,
    the row, and the address of the earlier bits. With ALIGNED all addresses are multiples
    of 16. A row has eight fields: two halves of the hash, zeros, elements equal to the first,
    unchanged elements, bits in use, the first element, and padding.
    """
    for chunk in range(tl.program_id(0), chunks, tl.num_programs(0)):
        # Find the tensor of this chunk by binary search.
        low = 0
        high = tensors - 1
        while low < high:
            middle = (low + high) // 2
            if tl.load(table + tensors + middle) > chunk:
                high = middle
            else:
                low = middle + 1
        began = tl.load(table + tensors + low - 1, mask=low > 0, other=0)
        count = tl.load(table + low)
        row = tl.load(table + 2 * tensors + low)
        address = tl.load(addresses + low)
        earlier_address = tl.load(table + 3 * tensors + low)
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
        start = (chunk - began) * CHUNK
        memory += start
        earlier += start
        if ALIGNED:
            memory = tl.multiple_of(memory, 16)
        remaining = tl.minimum(count - start, CHUNK).to(tl.int32)
        # Positions are mixed in, so that the hash depends on the order.
        inside_block = tl.arange(0, BLOCK)
        position = (inside_block.to(tl.uint32) + start.to(tl.uint32)) * 0x9E3779B1
        lower = tl.zeros((BLOCK,), dtype=tl.uint32)
        upper = tl.zeros((BLOCK,), dtype=tl.uint32)
        tally = tl.zeros((BLOCK,), dtype=tl.int32)
        same = tl.zeros((BLOCK,), dtype=tl.int32)
        used = tl.zeros((BLOCK,), dtype=tl.uint64 if BITS == 64 else tl.uint32)
        factor = tl.full((BLOCK,), 0xC2B2AE3D, tl.uint32)
        whole = remaining // BLOCK
        for block in range(whole):
            words = tl.load(memory + block * BLOCK + inside_block)
            if BITS == 64:
                mixed = (words.to(tl.uint32) + position) ^ (
                    (words >> 32).to(tl.uint32) * 0x85EBCA77
                )
            else:
                mixed = words.to(tl.uint32) + position
            product = mixed * factor
            over = tl.umulhi(mixed, factor)
            lower += product ^ over
            upper += over ^ (product >> 15)
            # The lower half counts zeros, the upper half elements equal to the first.
            tally += (words == 0).to(tl.int32) + ((words == first).to(tl.int32) << 16)
            used |= words.to(tl.uint64 if BITS == 64 else tl.uint32)
            if COMPARED:
                same += (words == tl.load(earlier + block * BLOCK + inside_block)).to(tl.int32)
            position += BLOCK * 0x9E3779B1 & 0xFFFFFFFF
        if whole * BLOCK < remaining:
            places = whole * BLOCK + inside_block
            inside = places < remaining
            words = tl.load(memory + places, mask=inside, other=0)
            if BITS == 64:
                mixed = (words.to(tl.uint32) + position) ^ (
                    (words >> 32).to(tl.uint32) * 0x85EBCA77
                )
            else:
                mixed = words.to(tl.uint32) + position
            product = mixed * factor
            over = tl.umulhi(mixed, factor)
            lower += tl.where(inside, product ^ over, 0)
            upper += tl.where(inside, over ^ (product >> 15), 0)
            tally += (inside & (words == 0)).to(tl.int32)
            tally += (inside & (words == first)).to(tl.int32) << 16
            used |= words.to(tl.uint64 if BITS == 64 else tl.uint32)
            if COMPARED:
                was = tl.load(earlier + places, mask=inside, other=0)
                same += (inside & (words == was)).to(tl.int32)
        result = rows + row * 8
        tl.atomic_add(result, tl.sum(lower.to(tl.int64)), sem="relaxed")
        tl.atomic_add(result + 1, tl.sum(upper.to(tl.int64)), sem="relaxed")
        tl.atomic_add(result + 2, tl.sum(tally & 0xFFFF).to(tl.int64), sem="relaxed")
        tl.atomic_add(result + 3, tl.sum(tally >> 16).to(tl.int64), sem="relaxed")
        if COMPARED:
            tl.atomic_add(result + 4, tl.sum(same).to(tl.int64), sem="relaxed")
        tl.atomic_or(result + 5, tl.reduce(used, 0, _either).to(tl.int64), sem="relaxed")
        if chunk == began:
            tl.store(result + 6, first.to(tl.int64))
