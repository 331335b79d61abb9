"""Trains with TRL's ORPOTrainer, which `trl` (1.16) has no command for: `python trl_orpo.py --config trl_orpo.yaml`."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import (
    DatasetMixtureConfig,
    ModelConfig,
    ScriptArguments,
    TrlParser,
    get_dataset,
    get_peft_config,
    get_quantization_config,
)
from trl.experimental.orpo import ORPOConfig, ORPOTrainer


def main():
    parser = TrlParser((ScriptArguments, ORPOConfig, ModelConfig, DatasetMixtureConfig))
    script, training, of_model, mixture = parser.parse_args_and_config(fail_with_unknown_args=True)
    if mixture.datasets:
        rows = get_dataset(mixture)
    else:
        rows = load_dataset(script.dataset_name, name=script.dataset_config)
    loading = {"revision": of_model.model_revision, "trust_remote_code": training.trust_remote_code}
    tokenizer = AutoTokenizer.from_pretrained(of_model.model_name_or_path, **loading)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(
        of_model.model_name_or_path,
        dtype=of_model.dtype,
        attn_implementation=of_model.attn_implementation,
        quantization_config=get_quantization_config(of_model),
        **loading,
    )
    trainer = ORPOTrainer(
        model=model,
        args=training,
        train_dataset=rows[script.dataset_train_split],
        eval_dataset=rows[script.dataset_test_split] if training.eval_strategy != "no" else None,
        processing_class=tokenizer,
        peft_config=get_peft_config(of_model),
    )
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model(training.output_dir)


if __name__ == "__main__":
    main()
