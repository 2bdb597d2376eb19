#!/usr/bin/env python3
"""make.py FOLDER: values and logits of tensor types, by another runtime.

For each type TYPE, of blocks that tests/support/quantised_model.cc makes by the same rule, this writes beside itself
  TYPE.values   blocks with edge scales, decoded by gguf-py: float32
  TYPE.logits   of a small model whose matrices are all of TYPE: those of the last positions of IDS, float32 [16, 260],
                computed by llama.cpp's CPU back end on the same weights expanded to float32, with float32 KV
and into FOLDER the models, as they are and expanded. Needs numpy, gguf and llama-cpp-python (the files here: 0.3.16).
"""
import pathlib
import sys

import gguf
import llama_cpp
import numpy as np

HERE = pathlib.Path(__file__).parent
# Offsets of the halves within a block, and their bits in the model.
TYPES = {
    "Q2_K": ([80, 82], [0x1C00, 0x1E00]),
    "Q3_K": ([108], [0x1580]),
    "IQ4_NL": ([0], [0x1280]),
    "IQ4_XS": ([0], [0x0280]),
}
EDGE_HALVES = [0x3C00, 0xBC00, 0x7BFF, 0x0001, 0x83FF, 0x0000, 0x8000, 0x2A66, 0xFBFF, 0x0400, 0x1234]
EDGE_BLOCKS = 16
EMBD, FF, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 256, 512, 4, 2, 64, 260, 2
N_IDS, LAST = 48, 16
IDS = [3 + (i * i * 7 + 31 + i) % (VOCAB - 3) for i in range(N_IDS)]


def random_bytes(count, seed):
    state, out = seed, bytearray(count)
    for i in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        out[i] = state >> 56
    return out


def put_half(block, offset, bits):
    block[offset : offset + 2] = bits.to_bytes(2, "little")


def edge_blocks(name):
    offsets, _ = TYPES[name]
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    blocks = bytearray()
    for b in range(EDGE_BLOCKS):
        block = bytearray([0x00, 0xFF][b : b + 1] * size) if b < 2 else random_bytes(size, b)
        for h, offset in enumerate(offsets):
            put_half(block, offset, EDGE_HALVES[(b + 3 * h) % len(EDGE_HALVES)])
        blocks += block
    return np.frombuffer(bytes(blocks), np.uint8).reshape(EDGE_BLOCKS, size)


def matrix(name, rows, columns, seed):
    offsets, bases = TYPES[name]
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    data = random_bytes(rows * columns // elements * size, seed)
    for at in range(0, len(data), size):
        # Both halves have the sign and the last bits of the first one's random ones.
        noise = int.from_bytes(data[at + offsets[0] : at + offsets[0] + 2], "little")
        for offset, base in zip(offsets, bases):
            put_half(data, at + offset, (noise & 0x8000) | (base + (noise & 0xFF)))
    return np.frombuffer(bytes(data), np.uint8).reshape(rows, -1)


def matrices():
    yield "token_embd.weight", VOCAB, EMBD
    for layer in range(LAYERS):
        for name, rows, columns in (
            ("attn_q", HEADS * HEAD_DIM, EMBD),
            ("attn_k", KV_HEADS * HEAD_DIM, EMBD),
            ("attn_v", KV_HEADS * HEAD_DIM, EMBD),
            ("attn_output", EMBD, HEADS * HEAD_DIM),
            ("ffn_gate", FF, EMBD),
            ("ffn_up", FF, EMBD),
            ("ffn_down", EMBD, FF),
        ):
            yield f"blk.{layer}.{name}.weight", rows, columns
    yield "output.weight", VOCAB, EMBD


def norms():
    for layer in range(LAYERS):
        yield f"blk.{layer}.attn_norm.weight"
        yield f"blk.{layer}.ffn_norm.weight"
    yield "output_norm.weight"


def write_model(path, name, expand):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(EMBD)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + ["word259"])
    writer.add_token_scores([-float(i) for i in range(VOCAB)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1])
    kind = gguf.GGMLQuantizationType[name]
    for seed, (tensor, rows, columns) in enumerate(matrices(), 1):
        data = matrix(name, rows, columns, seed)
        if expand:
            writer.add_tensor(tensor, gguf.dequantize(data, kind).astype(np.float32))
        else:
            writer.add_tensor(tensor, data, raw_dtype=kind)
    for norm in norms():
        writer.add_tensor(norm, (0.75 + (np.arange(EMBD) % 8) / 16).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(path):
    model = llama_cpp.Llama(
        model_path=str(path), n_ctx=128, n_batch=N_IDS, logits_all=True, verbose=False, flash_attn=False,
        type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, n_gpu_layers=0,
    )
    model.eval(IDS)
    return np.array(model.scores[N_IDS - LAST : N_IDS], np.float32)


def kl(reference, other):
    def log_softmax(x):
        x = x.astype(np.float64)
        x = x - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    p, q = log_softmax(reference), log_softmax(other)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        values = gguf.dequantize(edge_blocks(name), kind).astype("<f4")
        (HERE / f"{name}.values").write_bytes(values.tobytes())
        write_model(folder / f"{name}.gguf", name, expand=False)
        write_model(folder / f"{name}-F32.gguf", name, expand=True)
        reference = logits(folder / f"{name}-F32.gguf")
        (HERE / f"{name}.logits").write_bytes(reference.astype("<f4").tobytes())
        print(f"{name}: logits {reference.min():.2f} to {reference.max():.2f}; "
              f"KL of its own {name}: {kl(reference, logits(folder / f'{name}.gguf')):.3g}")


main()
