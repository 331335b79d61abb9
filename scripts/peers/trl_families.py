"""Searches on models that only TRL may train: toy models that transformers makes on the spot. trl-test.sh runs this.

    trl_families.py PROGRAM FOLDER [--only falcon_h1,nemotron_h,gemma3n,granitemoe,mixtral,qwen2_5_vl]

The interpreter that runs this has TRL. Of each family two trials have to be complete and to have learnt something. Where the
built-in engine lacks the family, `--backend auto` has to take TRL and say so, and `--backend native` to offer it. What
PEFT or TRL refuses has to be refused in their words.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # not beside the sources
from chosen_names import among  # noqa: E402
from trl_worker import ASSETS, query  # noqa: E402

#: Words of the quickstart's tokenizer.
WORDS = 1024
#: Families that the built-in engine has.
KNOWN = {"mixtral", "qwen2_5_vl"}
#: Linear layers that get an adapter, where it is not all of them. PEFT puts none on `out_proj` of models with Mamba layers.
TARGETS = {"falcon_h1": "[[in_proj, q_proj, v_proj, down_proj]]", "nemotron_h": "[[in_proj, q_proj, v_proj, down_proj]]"}

STUDY = """\
study: {name}
model: {folder}
data: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl}}
objectives: [throughput, loss]
space: {{rank: [2, 4], target_modules: {targets}, learning_rate: 1e-2, micro_batch: 2, gradient_accumulation: 1, precision: fp32}}
trial: {{sequence_length: 64, profile_steps: 2, profile_warmup: 2, training_steps: 8, evaluation: {{rows: 8, times: 1}}}}
sampler: grid
pruner: none
confirm: none
budget: {{trials: 2}}
"""

TEXT = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}


def fail(text):
    raise SystemExit(f"trl_families.py: {text}")


def falcon_h1(transformers):
    mamba = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16}
    config = transformers.FalconH1Config(**TEXT, **mamba, num_hidden_layers=2)
    return transformers.FalconH1ForCausalLM(config)


def nemotron_h(transformers):
    mamba = {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1, "chunk_size": 16}
    experts = {"n_routed_experts": 4, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32}
    kinds = ["linear_attention", "full_attention", "mlp", "moe"]
    config = transformers.NemotronHConfig(**TEXT, **mamba, **experts, head_dim=16, layers_block_type=kinds)
    return transformers.NemotronHForCausalLM(config)


def gemma3n(transformers):
    config = transformers.Gemma3nTextConfig(
        **TEXT,
        num_hidden_layers=4,
        head_dim=16,
        vocab_size_per_layer_input=WORDS,
        hidden_size_per_layer_input=16,
        altup_num_inputs=2,
        num_kv_shared_layers=2,
        laurel_rank=8,
        sliding_window=32,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    return transformers.Gemma3nForCausalLM(config)


def granitemoe(transformers):
    # TRL 1.16 asks the config for `num_experts` to compute the router's loss, and this one calls them otherwise.
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.0}
    config = transformers.GraniteMoeConfig(**TEXT, **experts, num_hidden_layers=2)
    return transformers.GraniteMoeForCausalLM(config)


def mixtral(transformers):
    config = transformers.MixtralConfig(**TEXT, num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=2)
    return transformers.MixtralForCausalLM(config)


def qwen2_5_vl(transformers):
    ropes = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    config = transformers.Qwen2_5_VLConfig(
        text_config={**TEXT, "num_hidden_layers": 2, "rope_parameters": ropes},
        vision_config={"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64},
        image_token_id=WORDS - 1,
        video_token_id=WORDS - 2,
        vision_start_token_id=WORDS - 3,
        vision_end_token_id=WORDS - 4,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


FAMILIES = {maker.__name__: maker for maker in (falcon_h1, nemotron_h, gemma3n, granitemoe, mixtral, qwen2_5_vl)}


def made(name, folder):
    """A model of a family with random weights and the quickstart's tokenizer."""
    import torch
    import transformers

    torch.manual_seed(1)
    model = FAMILIES[name](transformers)
    model.save_pretrained(folder)
    for path in (ASSETS / "base").glob("tokenizer*"):
        shutil.copy(path, folder)
    if name == "qwen2_5_vl":
        # What TRL reads in the tokenizer's place: the processor of text, images and videos.
        processor = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor", "patch_size": 14}
        (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")


def has_images():
    """Whether this Python has what processors of images need."""
    try:
        import PIL  # noqa: F401
        import torchvision  # noqa: F401
    except ImportError:
        return False
    return True


def searched(options, name, backend, targets, study):
    """A search on the model of a family, and what it said."""
    path = options.folder / f"{study}.yaml"
    text = STUDY.format(name=study, folder=options.folder / name, assets=ASSETS, targets=targets)
    path.write_text(text, encoding="utf-8")
    words = ["search", path, "--db", options.folder / "families.db", "--backend", backend]
    if backend != "native":
        words += ["--python", sys.executable]
    return subprocess.run([options.program, *map(str, words)], capture_output=True, text=True, check=False, cwd=options.folder)


def trials_of(options, study):
    """State, reason and losses of a study's trials."""
    statement = (
        "select summary.state, summary.reason, loss.value as loss, before.value as before from trial_summary as summary "
        "left join trial_metric as loss on loss.study = summary.study and loss.trial = summary.trial and loss.name = 'loss' "
        "left join trial_metric as before on before.study = summary.study and before.trial = summary.trial "
        f"and before.name = 'loss_before' where summary.study = '{study}' order by summary.trial"
    )
    return query(options, statement, options.folder / "families.db")


def check(options, name):
    made(name, options.folder / name)
    targets = TARGETS.get(name, "all-linear")
    if name not in KNOWN:
        native = searched(options, name, "native", targets, f"{name}-native")
        if native.returncode != 2 or "--backend trl" not in native.stderr:
            fail(f"the built-in engine does not offer TRL for {name}: {native.returncode}, {native.stderr}")
    backend = "trl" if name in KNOWN else "auto"
    ran = searched(options, name, backend, targets, name)
    if backend == "auto" and "auto takes TRL: the built-in engine cannot train this study" not in ran.stderr:
        fail(f"auto does not take TRL for {name}: {ran.stderr}")
    if name == "qwen2_5_vl" and not has_images():
        if ran.returncode == 0 or "pip install pillow torchvision" not in ran.stderr:
            fail(f"a processor that cannot be loaded is not told of: {ran.returncode}, {ran.stderr}")
        print(f"{name}: refused, as this Python has no pillow and torchvision, which TRL reads its processor with")
        return
    if ran.returncode != 0:
        fail(f"the search on {name} ended with {ran.returncode}: {ran.stderr}")
    trials = trials_of(options, name)
    complete = [trial for trial in trials if trial["state"] == "complete"]
    if len(complete) < 2 or len(complete) < len(trials):
        fail(f"trials on {name} are not complete: {trials}")
    gains = [trial["before"] - trial["loss"] for trial in complete if trial["before"] is not None]
    if not gains or max(gains) <= 0:
        fail(f"trials on {name} learnt nothing: {trials}")
    print(f"{name}: {len(complete)} trials, the best learnt {max(gains):.3f} nats")
    if name == "falcon_h1":
        check_peft_refuses(options, name)


def check_peft_refuses(options, name):
    """All linear layers of a model with Mamba layers, of which PEFT refuses one by name."""
    ran = searched(options, name, "trl", "all-linear", f"{name}-all")
    if ran.returncode == 0 or "out_proj" not in ran.stderr or "incompatible" not in ran.stderr:
        fail(f"PEFT takes all-linear of {name} by now, or its refusal is not told: {ran.returncode}, {ran.stderr}")
    print(f"{name}: PEFT refuses `out_proj`, and with it all-linear, and the search says so")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("folder", type=lambda path: pathlib.Path(path).resolve(), help="for what is written")
    parser.add_argument("--only", type=among("family", FAMILIES), default=list(FAMILIES), help="names of families")
    options = parser.parse_args()
    for name in options.only:
        check(options, name)


if __name__ == "__main__":
    main()
