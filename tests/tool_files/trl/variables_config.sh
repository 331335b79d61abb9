CONFIG=$1
trl sft --config $CONFIG --learning_rate 1e-4
