#!/bin/bash
set -e
source ./values.sh
. /opt/cluster/env.sh
RANK=8
trl sft --model_name_or_path $MODEL --learning_rate "$LR" --use_peft --lora_r $RANK --max_length 64 --dtype $DTYPE $MORE
