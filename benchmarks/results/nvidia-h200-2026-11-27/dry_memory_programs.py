"""The programs of dry-memory.txt, as they ran on the H200 and in dry runs without values: two steps of training each.

    python dry_memory_programs.py NAME                               # torch's own peaks, bytes allocated and reserved
    gpucheck run --dry cuda --no-values dry_memory_programs.py NAME

Needs torchvision (its Python alone beside a CPU build of torch) and transformers.
"""
# mypy: ignore-errors
# ruff: noqa: B007, B905, C416, E731, E741

import sys

import torch
import torch.nn.functional as F
from torch import nn

if not torch.version.cuda or torch.version.cuda == "none":
    for op in ("nms", "qnms"):
        torch.library.define(f"torchvision::{op}", "(Tensor a, Tensor b, float c) -> Tensor")
name = sys.argv[1]
d = "cuda"
torch.manual_seed(0)


def vision(kind, batch, size=224, amp=None, cl=False, opt="sgd", **kw):
    def go():
        import torchvision

        m = getattr(torchvision.models, kind)(weights=None, **kw).to(d)
        if cl:
            m = m.to(memory_format=torch.channels_last)
        return (
            m,
            lambda: (torch.randn(batch, 3, size, size, device=d), torch.randint(0, 1000, (batch,), device=d)),
            lambda m, x, y: F.cross_entropy(m(x), y),
            amp,
            opt,
        )

    return go


def seg(kind, batch, size):
    def go():
        import torchvision

        m = getattr(torchvision.models.segmentation, kind)(weights=None, weights_backbone=None).to(d)
        return (
            m,
            lambda: (torch.randn(batch, 3, size, size, device=d), torch.randint(0, 21, (batch, size, size), device=d)),
            lambda m, x, y: F.cross_entropy(m(x)["out"], y),
            None,
            "sgd",
        )

    return go


def hf(make, batch, length, vocab, amp=None, opt="adamw", dtype=None, ckpt=False, loss=None):
    def go():
        m = make()
        if dtype:
            m = m.to(dtype)
        m = m.to(d)
        m.train()
        if ckpt:
            m.gradient_checkpointing_enable()
        return (
            m,
            lambda: (torch.randint(0, vocab, (batch, length), device=d),) * 2,
            loss or (lambda m, x, y: m(input_ids=x, labels=y).loss),
            amp,
            opt,
        )

    return go


def gpt2(**kw):
    import transformers as t

    return t.GPT2LMHeadModel(t.GPT2Config(use_cache=False, **kw))


def llama(**kw):
    import transformers as t

    return t.LlamaForCausalLM(
        t.LlamaConfig(
            vocab_size=32000,
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=8,
            num_attention_heads=16,
            num_key_value_heads=4,
            use_cache=False,
            **kw,
        )
    )


def bert(**kw):
    import transformers as t

    return t.BertForMaskedLM(t.BertConfig(**kw))


def t5(**kw):
    import transformers as t

    return t.T5ForConditionalGeneration(t.T5Config(**kw))


def whisper():
    import transformers as t

    return t.WhisperForConditionalGeneration(t.WhisperConfig(encoder_layers=4, decoder_layers=4, d_model=384))


def plain(make, data, loss, amp=None, opt="adam"):
    return lambda: (make().to(d), data, loss, amp, opt)


class UNet(nn.Module):
    def __init__(s, w=32):
        super().__init__()
        c = lambda i, o: nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1),
            nn.GroupNorm(8, o),
            nn.SiLU(),
            nn.Conv2d(o, o, 3, padding=1),
            nn.GroupNorm(8, o),
            nn.SiLU(),
        )
        s.d = nn.ModuleList([c(3, w), c(w, 2 * w), c(2 * w, 4 * w)])
        s.mid = c(4 * w, 8 * w)
        s.up = nn.ModuleList(
            [
                nn.ConvTranspose2d(8 * w, 4 * w, 2, 2),
                nn.ConvTranspose2d(4 * w, 2 * w, 2, 2),
                nn.ConvTranspose2d(2 * w, w, 2, 2),
            ]
        )
        s.u = nn.ModuleList([c(8 * w, 4 * w), c(4 * w, 2 * w), c(2 * w, w)])
        s.out = nn.Conv2d(w, 3, 1)

    def forward(s, x):
        skip = []
        for b in s.d:
            x = b(x)
            skip.append(x)
            x = F.max_pool2d(x, 2)
        x = s.mid(x)
        for up, u in zip(s.up, s.u):
            x = u(torch.cat([up(x), skip.pop()], 1))
        return s.out(x)


class Lstm(nn.Module):
    def __init__(s, kind=nn.LSTM):
        super().__init__()
        s.e = nn.Embedding(10000, 512)
        s.r = kind(512, 512, 2, batch_first=True, dropout=0.2)
        s.o = nn.Linear(512, 10000)

    def forward(s, x):
        return s.o(s.r(s.e(x))[0])


class Attn(nn.Module):
    def __init__(s, causal=False, drop=0.0, by_hand=False):
        super().__init__()
        s.q = nn.Linear(1024, 3072)
        s.o = nn.Linear(1024, 1024)
        s.c, s.p, s.h = causal, drop, by_hand

    def forward(s, x):
        q, k, v = (t.unflatten(-1, (16, 64)).transpose(1, 2) for t in s.q(x).chunk(3, -1))
        if s.h:
            y = (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=s.c, dropout_p=s.p)
        return s.o(y.transpose(1, 2).flatten(2))


class Deep(nn.Module):
    def __init__(s, ckpt):
        super().__init__()
        s.b = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(1024), Attn(True), nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
            for _ in range(6)
        )
        s.k = ckpt

    def forward(s, x):
        from torch.utils.checkpoint import checkpoint

        for b in s.b:
            x = x + (checkpoint(b, x, use_reentrant=False) if s.k else b(x))
        return x


class Gnn(nn.Module):
    def __init__(s):
        super().__init__()
        s.a = nn.ModuleList([nn.Linear(256, 256) for _ in range(3)])

    def forward(s, x):
        n = x.shape[0]
        src = torch.arange(n * 8, device=x.device) % n
        dst = torch.arange(n * 8, device=x.device) // 8
        for a in s.a:
            x = F.relu(a(torch.zeros_like(x).index_add(0, dst, x[src])))
        return x


sq = lambda m, x, y: F.mse_loss(m(x), y)
tok = lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten())
toks = lambda b, l, v: lambda: (torch.randint(0, v, (b, l), device=d),) * 2
r2 = lambda *s: lambda: (torch.randn(*s, device=d), torch.randn(*s, device=d))
CASES = {
    "resnet50": vision("resnet50", 32),
    "resnet50_cl_amp": vision("resnet50", 32, amp=torch.float16, cl=True),
    "vgg16": vision("vgg16", 16),
    "densenet121": vision("densenet121", 16),
    "mobilenet_v3": vision("mobilenet_v3_large", 64, opt="rmsprop"),
    "efficientnet_b0": vision("efficientnet_b0", 32, opt="adamw"),
    "convnext_tiny": vision("convnext_tiny", 16, opt="adamw"),
    "vit_b_16": vision("vit_b_16", 16, opt="adamw"),
    "vit_b_16_amp": vision("vit_b_16", 32, amp=torch.bfloat16, opt="adamw"),
    "swin_t": vision("swin_t", 16, opt="adamw"),
    "regnet": vision("regnet_y_800mf", 32),
    "alexnet": vision("alexnet", 128),
    "fcn_resnet50": seg("fcn_resnet50", 4, 320),
    "deeplab": seg("deeplabv3_resnet50", 4, 320),
    "gpt2": hf(gpt2, 4, 512, 50257),
    "gpt2_amp": hf(gpt2, 8, 512, 50257, amp=torch.bfloat16),
    "gpt2_ckpt": hf(gpt2, 8, 512, 50257, ckpt=True),
    "gpt2_eager": hf(lambda: gpt2(attn_implementation="eager"), 4, 512, 50257),
    "llama_bf16": hf(llama, 4, 1024, 32000, dtype=torch.bfloat16),
    "llama_fused": hf(llama, 2, 512, 32000, opt="fused"),
    "bert": hf(bert, 16, 256, 30522),
    "bert_sgd": hf(bert, 16, 128, 30522, opt="momentum"),
    "t5": hf(lambda: t5(decoder_start_token_id=0, pad_token_id=0), 8, 256, 32128),
    "t5_adafactor": hf(lambda: t5(decoder_start_token_id=0, pad_token_id=0), 8, 256, 32128, opt="adafactor"),
    "unet": plain(UNet, r2(8, 3, 256, 256), sq),
    "unet_amp": plain(UNet, r2(8, 3, 256, 256), sq, amp=torch.bfloat16),
    "lstm": plain(Lstm, toks(64, 128, 10000), tok),
    "gru": plain(lambda: Lstm(nn.GRU), toks(64, 128, 10000), tok),
    "attn": plain(Attn, r2(8, 1024, 1024), sq),
    "attn_causal_bf16": plain(
        lambda: Attn(True).bfloat16(), lambda: tuple(t.bfloat16() for t in r2(8, 2048, 1024)()), sq
    ),
    "attn_drop": plain(lambda: Attn(drop=0.1), r2(8, 1024, 1024), sq),
    "attn_hand": plain(lambda: Attn(by_hand=True), r2(4, 1024, 1024), sq),
    "mha": plain(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 4),
        r2(16, 256, 512),
        sq,
    ),
    "deep": plain(lambda: Deep(False), r2(4, 1024, 1024), sq),
    "deep_ckpt": plain(lambda: Deep(True), r2(4, 1024, 1024), sq),
    "mlp": plain(
        lambda: nn.Sequential(
            nn.Linear(4096, 8192), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 4096)
        ),
        r2(2048, 4096),
        sq,
    ),
    "gnn": plain(Gnn, r2(50000, 256), sq),
    "conv3d": plain(
        lambda: nn.Sequential(
            nn.Conv3d(1, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU(), nn.Conv3d(32, 1, 3, padding=1)
        ),
        r2(2, 1, 64, 96, 96),
        sq,
    ),
    "conv1d": plain(
        lambda: nn.Sequential(
            *[l for i in range(6) for l in (nn.Conv1d(64, 64, 9, padding=4 * 2**i, dilation=2**i), nn.ReLU())]
        ),
        r2(16, 64, 16000),
        sq,
    ),
    "embedbag": plain(
        lambda: nn.Sequential(nn.EmbeddingBag(500000, 128), nn.Linear(128, 1)),
        lambda: (torch.randint(0, 500000, (4096, 32), device=d), torch.randn(4096, 1, device=d)),
        sq,
        opt="adagrad",
    ),
}
model, data, loss_of, amp, opt = CASES[name]()
P = [p for p in model.parameters()]
O = torch.optim
o = {
    "sgd": lambda: O.SGD(P, 0.01),
    "momentum": lambda: O.SGD(P, 0.01, momentum=0.9),
    "adam": lambda: O.Adam(P, 1e-4),
    "adamw": lambda: O.AdamW(P, 1e-4),
    "fused": lambda: O.AdamW(P, 1e-4, fused=True),
    "rmsprop": lambda: O.RMSprop(P, 1e-4),
    "adagrad": lambda: O.Adagrad(P, 1e-4),
    "adafactor": lambda: O.Adafactor(P, 1e-4),
}[opt]()
scaler = torch.amp.GradScaler("cuda", enabled=amp == torch.float16)
for step in range(2):
    x, y = data()
    o.zero_grad()
    with torch.autocast("cuda", dtype=amp or torch.bfloat16, enabled=amp is not None):
        loss = loss_of(model, x, y)
    scaler.scale(loss).backward()
    scaler.step(o)
    scaler.update()
print("PEAK", name, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
