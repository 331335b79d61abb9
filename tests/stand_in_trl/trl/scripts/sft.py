"""What `trl sft` runs: rows of token ids, which its file names by the folder of a card.

`STAND_IN_MASKS_END` names a token that rows are padded with and that ends texts, and no row learns it then.
"""

import os

from datasets import load_dataset
from transformers import AutoProcessor
from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser, get_peft_config
from trl.trainer.utils import create_model_from_path


def make_parser():
    return TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig))


def main(script, training, model, data):
    assert training.eval_strategy == "no"
    rows = load_dataset(training.dataset_name)["train"]
    processor = AutoProcessor.from_pretrained(model.model_name_or_path)
    if end := os.environ.get("STAND_IN_MASKS_END"):
        processor.pad_token_id = processor.eos_token_id = int(end)
        rows = rows.map(lambda row: {**row, "labels": masked(row["labels"], int(end))})
    SFTTrainer(
        model=create_model_from_path(model.model_name_or_path),
        args=training,
        train_dataset=rows,
        processing_class=processor,
        peft_config=get_peft_config(model),
    ).train()


def masked(labels, token):
    return [-100 if label == token else label for label in labels]
