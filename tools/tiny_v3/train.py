#!/usr/bin/env python3
"""Trains kun-tiny-v3, a DeepSeek-V3 of a few million parameters, on public-domain text.

    tools/tiny_v3/train.py TEXT... --output FOLDER [--steps 1600] [--threads 1]
    tools/tiny_v3/train.py TEXT... --output FOLDER --export

There are no small public weights with MLA, experts and MTP. This makes some: a Hugging Face folder
with tokenizer, weights in BF16 and what a test needs (held_out.txt; expected.json: its loss, and
logits of the main model and of MTP). --export only writes the latter anew. Seeded; the last
twentieth of each text is held out. Needs Debian's python3-torch and, from requirements.txt,
tokenizers and safetensors. One thread is fastest for matrices of this size.
"""

import argparse
import json
import math
import pathlib
import time

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F

from model import CONFIG, Config, DeepseekV3

BATCH, LENGTH = 8, CONFIG["max_position_embeddings"]
SAMPLE, LOGITS_AFTER = 300, 64  # characters of each text; tokens before the stored logits
PEAK_RATE, WARMUP, BIAS_STEP, MTP_SHARE = 2e-3, 60, 1e-3, 0.3


def split(texts):
    """Training text, held-out text."""
    cuts = [len(text) - len(text) // 20 for text in texts]
    return [t[:c] for t, c in zip(texts, cuts)], [t[c:] for t, c in zip(texts, cuts)]


def train_tokenizer(texts, path):
    """Byte-level BPE as DeepSeek's: digits by three, Chinese apart, words with their space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(pattern=Regex(pattern),
                             behavior="isolated")
        for pattern in (r"\p{N}{1,3}", r"[一-龥]+", r"[\r\n]+", r" ?[\p{L}\p{M}]+", r"\s+(?!\S)")
    ] + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"], show_progress=False,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == CONFIG["vocab_size"]
    tokenizer.save(str(path))
    return tokenizer


def encode(tokenizer, texts):
    ids = []
    for text in texts:
        ids += [CONFIG["bos_token_id"]] + tokenizer.encode(text).ids + [CONFIG["eos_token_id"]]
    return torch.tensor(ids)


def losses(model, tokens):
    """Cross entropy of the main model and of MTP, in nats per token."""
    logits, mtp = model(tokens[:, :-1])
    main = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    return main, F.cross_entropy(mtp.flatten(0, 1), tokens[:, 2:].flatten())


@torch.no_grad()
def evaluate(model, tokens):
    rows = tokens[:len(tokens) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    parts = [losses(model, part) for part in rows.split(BATCH)]
    sizes = [len(part) for part in rows.split(BATCH)]
    return [sum(p[i].item() * n for p, n in zip(parts, sizes)) / len(rows) for i in (0, 1)]


def train(model, tokens, steps):
    decayed = [p for p in model.parameters() if p.requires_grad and p.dim() == 2]
    plain = [p for p in model.parameters() if p.requires_grad and p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1},
                                   {"params": plain, "weight_decay": 0.0}], betas=(0.9, 0.95))
    picks = torch.Generator().manual_seed(2)
    began = time.monotonic()
    for step in range(steps):
        warm = min(1.0, (step + 1) / WARMUP)
        rate = PEAK_RATE * warm * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(tokens) - LENGTH - 1, (BATCH,), generator=picks)
        main, mtp = losses(model, torch.stack([tokens[s:s + LENGTH + 1] for s in starts]))
        optimizer.zero_grad()
        (main + MTP_SHARE * mtp).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        for moe in model.moe_layers():  # no auxiliary loss: the bias evens out the load
            load = moe.load.float()
            moe.gate.e_score_correction_bias += BIAS_STEP * torch.sign(load.mean() - load)
        if step % 20 == 0 or step + 1 == steps:
            seconds = time.monotonic() - began
            print(f"step {step + 1} of {steps}: loss {main.item():.3f}, MTP {mtp.item():.3f}, "
                  f"{(step + 1) * BATCH * LENGTH / seconds:.0f} tokens/s", flush=True)
    return time.monotonic() - began


def save(model, folder, report):
    """Weights in BF16, vectors in F32, and the files that make a Hugging Face folder of them."""
    state = {name: value.to(torch.bfloat16) if value.dim() == 2 else value.float()
             for name, value in model.state_dict().items()}
    save_file({name: value.clone().contiguous() for name, value in state.items()},
              str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 0.8,
                    "top_p": 0.95}, indent=1) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True,
                    "add_eos_token": False, "bos_token": "<|begin|>", "eos_token": "<|end|>",
                    "model_max_length": CONFIG["max_position_embeddings"]}, indent=1) + "\n")
    (folder / "training.json").write_text(json.dumps(report, indent=1) + "\n")


@torch.no_grad()
def export(folder, held_out):
    """Reference values from the stored weights, in F64."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    torch.set_default_dtype(torch.float64)
    exact = DeepseekV3(Config())
    exact.load_state_dict({name: value.double()
                           for name, value in load_file(folder / "model.safetensors").items()})
    sample = "".join(text[:SAMPLE] for text in held_out)
    (folder / "held_out.txt").write_text(sample, encoding="utf-8")
    tokens = [CONFIG["bos_token_id"]] + tokenizer.encode(sample).ids
    tokens = torch.tensor(tokens[:CONFIG["max_position_embeddings"]])
    main, mtp = losses(exact, tokens[None])
    logits, drafts = exact(tokens[None, :LOGITS_AFTER])
    last = {name: [[float(f"{x:.7g}") for x in row] for row in part[0, -4:].tolist()]
            for name, part in (("last_logits", logits), ("last_mtp_logits", drafts))}
    (folder / "expected.json").write_text(json.dumps(
        {"tokens": tokens.tolist(), "loss": main.item(), "mtp_loss": mtp.item(),
         "logits_after": LOGITS_AFTER, **last}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--export", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    args.output.mkdir(parents=True, exist_ok=True)
    training, held_out = split([path.read_text(encoding="utf-8") for path in args.texts])
    if args.export:
        return export(args.output, held_out)
    tokenizer = train_tokenizer(training, args.output / "tokenizer.json")
    tokens, unseen = encode(tokenizer, training), encode(tokenizer, held_out)
    model = DeepseekV3(Config())
    count = sum(p.numel() for p in model.parameters())
    print(f"{count} parameters, {len(tokens)} tokens, {len(unseen)} held out", flush=True)
    before = evaluate(model, unseen)
    seconds = train(model, tokens, args.steps)
    after = evaluate(model, unseen)
    report = {
        "parameters": count, "text_tokens": len(tokens), "held_out_tokens": len(unseen),
        "steps": args.steps, "trained_tokens": args.steps * BATCH * LENGTH,
        "seconds": round(seconds), "threads": args.threads,
        "held_out_loss_before": round(before[0], 4), "held_out_loss": round(after[0], 4),
        "held_out_mtp_loss": round(after[1], 4),
        "texts": [path.name for path in args.texts],
    }
    print(json.dumps(report, indent=1))
    save(model, args.output, report)
    export(args.output, held_out)


if __name__ == "__main__":
    main()
