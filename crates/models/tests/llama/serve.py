"""Serves a tiny model of random weights with llama.cpp.

Prints its address, and exits when standard input is closed.
"""

import os
import sys

import gguf
import numpy as np
import xllamacpp

WIDTH, HEADS, LAYERS, HIDDEN, CONTEXT = 64, 4, 2, 128, 2048
TEMPLATE = """{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}
{% for call in message.get('tool_calls') or [] %}calls {{ call['function']['name'] }} {{ call['function']['arguments'] | tojson }}
{% endfor %}{% endfor %}{% if tools %}tools: {{ tools | tojson }}
{% endif %}assistant:"""


def write_model(path: str) -> None:
    rng = np.random.default_rng(1)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256
    letters = ["\u2581" if code == 32 else chr(code) for code in range(32, 127)]
    tokens, kinds = tokens + letters, kinds + [gguf.TokenType.NORMAL] * len(letters)

    def random(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.2).astype(np.float32)

    ones = np.ones(WIDTH, np.float32)
    model = gguf.GGUFWriter(path, "llama")
    model.add_context_length(CONTEXT)
    model.add_embedding_length(WIDTH)
    model.add_block_count(LAYERS)
    model.add_feed_forward_length(HIDDEN)
    model.add_head_count(HEADS)
    model.add_head_count_kv(HEADS)
    model.add_layer_norm_rms_eps(1e-5)
    model.add_rope_dimension_count(WIDTH // HEADS)
    model.add_file_type(gguf.LlamaFileType.ALL_F32)
    model.add_vocab_size(len(tokens))
    model.add_tokenizer_model("llama")
    model.add_tokenizer_pre("default")
    model.add_token_list(tokens)
    model.add_token_scores([-float(rank) for rank in range(len(tokens))])
    model.add_token_types(kinds)
    model.add_bos_token_id(1)
    model.add_eos_token_id(2)
    model.add_unk_token_id(0)
    model.add_chat_template(TEMPLATE)
    model.add_tensor("token_embd.weight", random(len(tokens), WIDTH))
    model.add_tensor("output.weight", random(len(tokens), WIDTH))
    model.add_tensor("output_norm.weight", ones)
    for layer in range(LAYERS):
        shapes = {
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (WIDTH, WIDTH),
            "attn_v": (WIDTH, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }
        for name, shape in shapes.items():
            model.add_tensor(f"blk.{layer}.{name}.weight", random(*shape))
        for name in ("attn_norm", "ffn_norm"):
            model.add_tensor(f"blk.{layer}.{name}.weight", ones)
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()


path = os.path.join(sys.argv[1], "tiny.gguf")
write_model(path)
settings = xllamacpp.CommonParams()
settings.model.path = path
settings.n_ctx = CONTEXT
settings.hostnames = ["127.0.0.1"]
settings.port = 0
settings.cpuparams.n_threads = 1
settings.use_jinja = True
server = xllamacpp.Server(settings)
print(server.listening_address, flush=True)
sys.stdin.read()
os._exit(0)
