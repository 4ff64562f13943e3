"""Makes data/parallel_plans.json: what the installed Transformers does with each model type.

    python -m pipeline.parallel_plans            check the file against the installed version
    python -m pipeline.parallel_plans --write    write it anew

Placement needs, without torch, what only Transformers' modelling code knows: which weights a
tensor-parallel or expert-parallel plan shards and how, how checkpoint names become parameter
names, what is cached. Each class is built with two layers on the meta device, where neither
weights nor time are spent, and asked; a class that cannot be built from its default config (a
vision tower that needs timm, a default that is no model) is answered from its class and config
attributes ("built": false).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.words import Task

PATH = Path(__file__).parent / "data" / "parallel_plans.json"

COMMAND = "python -m pipeline.parallel_plans --write"

FIELDS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "v_head_dim",
    "global_head_dim",
    "num_global_key_value_heads",
    "swa_head_dim",
    "swa_v_head_dim",
    "swa_num_key_value_heads",
    "multi_query",
    "new_decoder_architecture",
)
"""What placement reads of a text config. config.json may leave out what equals the class's
default, and may name a field differently (GPT-2's `n_head`): both are in the file."""


def generate(only: frozenset[str] | None = None) -> dict[str, Any]:
    """The file's content for the installed Transformers; `only` = just these model types."""
    import logging

    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity(logging.CRITICAL)
    warnings.simplefilter("ignore")
    types: dict[str, dict[str, str]] = {}
    classes: dict[str, Any] = {}
    left_out: list[str] = []
    for task, model_type, name in _wanted():
        if only is not None and model_type not in only:
            continue
        try:
            entry = _describe(model_type, name)
        # A type without a valid default config: `left_out` shows it, and placement refuses it.
        except Exception:
            left_out.append(model_type)
            continue
        # Two types can share a class with other defaults (glmga and glm46v): the first keeps the
        # class's plain name.
        key = name if classes.setdefault(name, entry) == entry else f"{name}:{model_type}"
        classes[key] = entry
        types.setdefault(model_type, {})[task.value] = key
    return {
        "generated_by": COMMAND,
        "transformers": transformers.__version__,
        "left_out": left_out,
        "types": dict(sorted(types.items())),
        "classes": dict(sorted(classes.items())),
    }


def _wanted() -> Iterator[tuple[Task, str, str]]:
    """(task, model type, class name) as the auto classes of the two tasks choose, sorted."""
    from transformers.models.auto import modeling_auto

    for task, mapping in (
        (Task.TEXT_GENERATION, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        (Task.IMAGE_TEXT_TO_TEXT, modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES),
    ):
        for model_type, name in sorted(mapping.items()):
            yield task, model_type, name


def _describe(model_type: str, name: str) -> dict[str, Any]:
    """Everything placement needs of class `name` for config.json files of `model_type`."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_class: Any = getattr(transformers, name)
    config_class = CONFIG_MAPPING[model_type]
    model = None
    for shrunk in (True, False):
        try:
            config = _config(model_class, config_class, shrunk=shrunk)
            model = _meta_model(model_class, config)
            break
        # Any failure of a default config means the same: not buildable this way.
        except Exception:  # noqa: S112
            continue
    whole = config_class()
    path = _text_path(whole)
    text = whole
    for step in path:
        text = getattr(text, step)
    entry: dict[str, Any] = {"built": model is not None, "text": path}
    if model is not None:
        entry |= _of_model(model)
    else:
        entry |= _of_class(model_class, whole, text)
    if path and _is_auto(whole, path):
        entry["text_type"] = text.model_type
    top = text if path and model_class.config_class is type(text) else whole
    entry["nested"] = top is whole
    entry["tied_by_default"] = bool(_default(top, "tie_word_embeddings"))
    entry["fullgraph"] = bool(model_class._can_compile_fullgraph)
    names = {
        field: other
        for field, other in sorted((getattr(text, "attribute_map", None) or {}).items())
        if field in FIELDS
    }
    entry["names"] = names
    entry["defaults"] = {
        field: value
        for field in FIELDS
        if isinstance(value := _default(text, names.get(field, field)), int)
    }
    return {key: entry[key] for key in sorted(entry)}


def _config(model_class: Any, config_class: Any, *, shrunk: bool) -> Any:
    """The default config that class takes, with two layers in every part when `shrunk`."""
    options: dict[str, Any] = {}
    if shrunk:
        subs = config_class.sub_configs
        options["num_hidden_layers"] = 2
        if "text_config" in subs:
            options["text_config"] = {"num_hidden_layers": 2}
        if "vision_config" in subs:
            options["vision_config"] = {"num_hidden_layers": 2, "depth": 2}
    config = config_class(**options)
    # As the auto classes do for a text-only class of a composite type.
    if (sub := config_class.sub_configs.get("text_config")) and model_class.config_class is sub:
        return config.get_text_config()
    return config


def _meta_model(model_class: Any, config: Any) -> Any:
    import torch

    with torch.device("meta"):
        return model_class(config).eval()


def _text_path(config: Any) -> list[str]:
    """The keys below config.json that lead to the text decoder's config; [] = the top."""
    text = config.get_text_config(decoder=True)
    for key in config.sub_configs:
        sub: Any = getattr(config, key, None)
        if sub is text:
            return [key]
        if getattr(sub, "sub_configs", None) and any(
            getattr(sub, inner, None) is text for inner in sub.sub_configs
        ):
            return [key, *_text_path(sub)]
    return []


def _is_auto(config: Any, path: list[str]) -> bool:
    """Whether the text part may be any text model, which its own config.json part then names."""
    from transformers import AutoConfig

    return len(path) == 1 and config.sub_configs.get(path[0]) is AutoConfig


def _default(config: Any, field: str) -> Any:
    """The class's default of a config field, before anything is derived from other fields."""
    found = type(config).__dataclass_fields__.get(field)
    value = getattr(type(config), field, None) if found is None else found.default
    return value if isinstance(value, (bool, int)) else None


def _of_model(model: Any) -> dict[str, Any]:
    """What a built model says of itself."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    text = model.config.get_text_config(decoder=True)
    inner = next(
        (
            name
            for name, module in model.named_modules()
            if name and getattr(module, "config", None) is text and hasattr(module, "layers")
        ),
        "",
    )
    return {
        "tensor": dict(sorted(model.tp_plan.items())),
        "expert": dict(sorted(model.ep_plan.items())),
        "prefix": model.base_model_prefix,
        "inner": inner,
        "renames": [
            row
            for transform in get_model_conversion_mapping(model, add_legacy=False)
            for row in _rename(transform)
        ],
        "ignored": _ignored(model._keys_to_ignore_on_load_unexpected, model),
        "tied": dict(sorted((type(model)._tied_weights_keys or {}).items())),
        "cache": _cache_kind(model, text),
    }


def _of_class(model_class: Any, config: Any, text: Any) -> dict[str, Any]:
    """The same from class and config attributes alone, named as almost all classes name them."""
    from transformers import conversion_mapping

    registered: Any = conversion_mapping.get_checkpoint_conversion_mapping
    prefix = model_class.base_model_prefix
    composite = text is not config and model_class.config_class is not type(text)
    inner = f"{prefix}.language_model" if composite else prefix

    def plan(kind: str) -> dict[str, str]:
        base = getattr(text, f"base_model_{kind}_plan", None) or {}
        if base and kind == "tp":
            base = {"embed_tokens": "embedding_rowwise", **base}
        own = getattr(model_class, f"_{kind}_plan", None) or {}
        return dict(sorted({**own, **{f"{inner}.{key}": base[key] for key in base}}.items()))

    transforms = registered(model_class.__name__)
    if transforms is None:
        transforms = registered(config.model_type) or []
    return {
        "tensor": plan("tp"),
        "expert": plan("ep"),
        "prefix": prefix,
        "inner": inner,
        "renames": [row for transform in transforms for row in _rename(transform)],
        "ignored": _ignored(model_class._keys_to_ignore_on_load_unexpected, None),
        "tied": dict(sorted((model_class._tied_weights_keys or {}).items())),
        "cache": _class_cache_kind(model_class, text),
    }


def _ignored(patterns: Any, model: Any) -> list[str]:
    """Regexes of stored names that the class never loads.

    Transformers tries them on names it has no parameter for, placement on all names: so without
    those that match one of the model's own parameters, and without those for one numbered layer
    (placement leaves out layers above the config's number by itself).
    """
    own = [] if model is None else [name for name, _ in model.named_parameters()]
    return sorted(
        pattern
        for pattern in patterns or ()
        if not re.search(r"layers\\?\.\d", pattern)
        and not any(re.search(pattern, name) for name in own)
    )


def _rename(transform: Any) -> list[list[Any]]:
    """[how, scope, base prefix, source regex, targets] of one of Transformers' transforms.

    how: "each" = a target for every branch of the regex; "rename"; "convert" = at most one of
    these applies; "stack" = one that also stacks a list of modules into one parameter; "pairs" =
    two stored layers make one.
    """
    from transformers import core_model_loading as loading

    how = "rename"
    if isinstance(transform, loading.WeightConverter):
        stacks = any(isinstance(op, loading.MergeModulelist) for op in transform.operations)
        how = "stack" if stacks else "convert"
    elif isinstance(transform, loading.GroupWeightRename):
        how = "each"
    elif isinstance(transform, loading.LayerPairCollapse):
        how = "pairs"
    pattern = transform.pattern if how == "pairs" else transform.compiled_sources
    targets = list(transform.target_patterns)
    return [[how, transform.scope_prefix, transform.base_model_prefix, pattern.pattern, targets]]


def _class_cache_kind(model_class: Any, text: Any) -> str:
    """ "state" where a layer keeps something else than keys and values, "heads" elsewhere."""
    from transformers.cache_utils import (
        STATIC_LAYER_TYPE_MAPPING,
        StaticLayer,
        get_layer_types_and_kwargs,
    )

    if model_class._is_stateful:
        return "state"
    try:
        kinds, _ = get_layer_types_and_kwargs(text)
    # Old types have no layers to list; they are plain attention.
    except Exception:
        return "heads"
    plain = {
        name for name, kind in STATIC_LAYER_TYPE_MAPPING.items() if issubclass(kind, StaticLayer)
    }
    return "heads" if set(kinds) <= plain - {"hybrid", "hybrid_sliding"} | {"dummy"} else "state"


def _cache_kind(model: Any, text: Any) -> str:
    """ "latent" where the first layer was seen to cache the compressed latent of MLA.

    A forward of four tokens on the meta device; models that stop later (a router reads data that
    is not there) have filled the first layer's cache by then.
    """
    import torch
    from transformers.cache_utils import Cache, StaticLayer

    kind = _class_cache_kind(type(model), text)
    # Not getattr: a config whose layers differ refuses it.
    rank = vars(text).get("kv_lora_rank")
    if kind == "state" or not rank:
        return kind
    cache: Any = Cache(
        layers=[StaticLayer(max_cache_len=8) for _ in range(text.num_hidden_layers + 1)]
    )
    try:
        with torch.no_grad(), torch.device("meta"):
            tokens = torch.zeros(1, 4, dtype=torch.long)
            model(input_ids=tokens, cache=cache, use_cache=True)
    # Whatever stopped it, the shapes seen so far answer.
    except Exception:  # noqa: S110
        pass
    first: Any = next((layer for layer in cache.layers if layer.is_initialized), None)
    if first is None:
        return kind
    return "latent" if first.keys.shape[1:] == (1, 8, rank) else "heads"


def dump(content: Mapping[str, Any]) -> str:
    """The file's text: a line a type and a line a class, so that a version's changes read well."""
    lines = ["{"]
    for key in ("generated_by", "transformers", "left_out"):
        lines.append(f"{json.dumps(key)}: {json.dumps(content[key])},")
    for key, end in (("types", "},"), ("classes", "}")):
        lines.append(f"{json.dumps(key)}: {{")
        rows = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in content[key].items()]
        lines.append(",\n".join(rows))
        lines.append(end)
    return "\n".join([*lines, "}"]) + "\n"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs, a line each; [] when nothing does."""
    found = []
    if old.get("transformers") != new["transformers"]:
        found.append(f"transformers: {old.get('transformers')} -> {new['transformers']}")
    for part in ("types", "classes"):
        was, now = old.get(part, {}), new[part]
        for name in sorted(was.keys() | now.keys()):
            if was.get(name) != now.get(name):
                state = "added" if name not in was else "gone" if name not in now else "changed"
                found.append(f"{part}: {name} {state}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """0 = the file holds what the installed Transformers says, or was written; 1 = it differs."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.parallel_plans", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the file instead")
    options = parser.parse_args(arguments)
    content = generate()
    if options.write:
        PATH.parent.mkdir(parents=True, exist_ok=True)
        PATH.write_text(dump(content), encoding="utf-8")
        print(f"{PATH.name}: {len(content['types'])} types, {len(content['classes'])} classes")
        return 0
    old = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    found = differences(old, content)
    for line in found:
        print(line)
    if found:
        print(f"{PATH.name} is not that of the installed Transformers: {COMMAND}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
