"""What the adapters do without the trainers that they adapt: python3 -m unittest discover -s integrations/tests"""

import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in ("", "axolotl", "launch"):
    sys.path.insert(0, str(HERE.parent / folder))

import launch
import peft_tune_axolotl
import peft_tune_callback as callback
import peft_tune_names as names
import importlib.util


def train_of(tool):
    """A tool's train.py, which has no name of its own."""
    path = HERE.parent / tool / "train.py"
    spec = importlib.util.spec_from_file_location(f"{tool}_train", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trial(steps=None, **params):
    return callback.Trial({"params": params, "trial": 1, "seed": 2**40 + 5, "steps": steps}, io.StringIO())


class Reports(unittest.TestCase):
    def test_a_trial_is_read_from_the_stream_or_from_the_environment(self):
        line = '{"params": {"rank": 4}, "trial": 3, "seed": 9, "steps": 7}\n'
        read = callback.Trial.read(io.StringIO(line))
        self.assertEqual((read.param("r", "rank"), read.number, read.seed, read.steps), (4, 3, 9, 7))
        os.environ[callback.TRIAL_VARIABLE] = line
        try:
            self.assertEqual(callback.Trial.read(io.StringIO("")).number, 3)
        finally:
            del os.environ[callback.TRIAL_VARIABLE]
        with self.assertRaises(SystemExit):
            callback.Trial.read(io.StringIO("rank=4"))

    def test_lines_are_json_and_what_is_not_finite_is_null(self):
        one = trial()
        one.report(2, {"throughput": 10.0, "loss": float("nan"), "absent": None})
        one.finish({"loss": 1})
        one.fail("crashed", "after the end")
        lines = [json.loads(line) for line in one.output.getvalue().splitlines()]
        self.assertEqual(lines, [{"step": 2, "metrics": {"throughput": 10.0, "loss": None}}, {"metrics": {"loss": 1.0}}])

    def test_only_the_first_of_several_processes_reports(self):
        one = trial()
        one.is_main = False
        one.report(1, {"loss": 1.0})
        self.assertEqual(one.output.getvalue(), "")

    def test_exceptions_have_the_outcome_that_they_mean(self):
        out_of_memory = type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory")
        cpu = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ...")
        for error in (out_of_memory, cpu, MemoryError()):
            self.assertEqual(callback.outcome_of(error)[0], "out_of_memory")
        self.assertEqual(callback.outcome_of(callback.Diverged("nan"))[0], "diverged")
        self.assertEqual(callback.outcome_of(callback.Invalid("no"))[0], "invalid")
        self.assertEqual(callback.outcome_of(KeyError("x")), ("crashed", "KeyError: 'x'"))

    def test_the_clock_leaves_out_the_warm_up(self):
        clock = callback.Clock(warmup_steps=1)
        for began, ended, tokens in [(0.0, 10.0, 100), (10.0, 11.0, 100), (11.0, 13.0, 100), (13.0, 14.0, 300)]:
            clock.begin(began)
            clock.end(tokens, ended)
        self.assertEqual((clock.throughput(), clock.step_s()), (100.0, 1.0))


class Launching(unittest.TestCase):
    def test_one_device_needs_no_launcher(self):
        command = launch.command_of(["torchrun", "--", "train.py", "--model=m"], 1)
        self.assertEqual(command, [sys.executable, "train.py", "--model=m"])

    def test_launchers_are_told_the_number_of_processes(self):
        command = launch.command_of(["torchrun", "--", "train.py"], 2)
        self.assertEqual(command, ["torchrun", "--standalone", "--nproc_per_node=2", "train.py"])
        command = launch.command_of(["accelerate", "--launcher-args", "--use_fsdp --x 'a b'", "--", "t.py"], 4)
        self.assertEqual(command[:3], ["accelerate", "launch", "--num_processes=4"])
        self.assertEqual(command[-4:], ["--use_fsdp", "--x", "a b", "t.py"])
        # Without a word on the kind of launch, accelerate starts one process where it sees no GPUs.
        self.assertEqual(launch.command_of(["accelerate", "--", "t.py"], 2)[-2:], ["--multi_gpu", "t.py"])
        # Its launcher gives the program an argument of its own, and all trials one port, unless it is told not to.
        command = launch.command_of(["deepspeed", "--", "t.py"], 2)
        self.assertEqual(command[:2] + command[3:], ["deepspeed", "--no_local_rank", "--num_gpus=2", "t.py"])
        self.assertRegex(command[2], "^--master_port=[0-9]+$")
        command = launch.command_of(["--template", "mpirun -n {devices} python", "--", "t.py"], 3)
        self.assertEqual(command, ["mpirun", "-n", "3", "python", "t.py"])
        with self.assertRaises(SystemExit):
            launch.command_of(["pytorchrun", "--", "t.py"], 2)

    def test_launchers_are_found_beside_the_interpreter(self):
        environment = launch.environment("{}")
        self.assertEqual(environment["PATH"].split(os.pathsep)[0], str(Path(sys.executable).parent))
        self.assertEqual(environment[callback.TRIAL_VARIABLE], "{}")

    def test_a_trial_on_fewer_processes_than_it_wants_is_refused(self):
        with self.assertRaises(callback.Invalid):
            trial(devices=2).check_processes()
        one = trial(devices=2)
        one.processes = 2
        one.check_processes()


class Configurations(unittest.TestCase):
    def test_axolotl_gets_its_own_names(self):
        base = {"base_model": "m", "lora_target_modules": ["q_proj"], "plugins": ["other.Plugin"]}
        one = trial(30, rank=8, alpha_ratio=2, target_modules="all-linear", micro_batch=2, global_batch=16, devices=2,
                    precision="nf4", gradient_checkpointing="full", optimizer="adamw_8bit", flash_attention=True)
        config = peft_tune_axolotl.configuration(base, one)
        self.assertEqual((config["lora_r"], config["lora_alpha"]), (8, 16))
        self.assertTrue(config["lora_target_linear"] and "lora_target_modules" not in config)
        self.assertEqual(config["gradient_accumulation_steps"], 4)
        self.assertEqual((config["adapter"], config["load_in_4bit"]), ("qlora", True))
        self.assertEqual((config["gradient_checkpointing"], config["optimizer"]), (True, "adamw_8bit"))
        self.assertEqual((config["flash_attention"], config["max_steps"]), (True, 30))
        self.assertEqual(config["plugins"], ["other.Plugin", "peft_tune_axolotl.PeftTunePlugin"])
        self.assertLess(config["seed"], 2**32)
        self.assertEqual(base["plugins"], ["other.Plugin"])
        with self.assertRaises(callback.Invalid):
            peft_tune_axolotl.configuration({}, trial(micro_batch=3, global_batch=16))

    def test_what_a_process_of_a_process_reports_is_passed_on(self):
        plugin = ("import os; reports = open(os.environ['PEFT_TUNE_REPORTS'], 'w'); "
                  "reports.write('{\"metrics\": {\"loss\": 1.5}}\\n')")
        program = (f"#!{sys.executable}\nimport subprocess, sys\nprint('noise')\n"
                   f"subprocess.run([sys.executable, '-c', {plugin!r}], check=True)\n"
                   "sys.exit('broken' if 'bad' in open(sys.argv[2]).read() else 0)\n")
        with tempfile.TemporaryDirectory() as folder:
            axolotl, base = Path(folder, "axolotl"), Path(folder, "trial.yaml")
            axolotl.write_text(program)
            axolotl.chmod(0o755)
            adapter = f"""import sys; sys.path.insert(0, {str(HERE.parent / 'axolotl')!r})
from pathlib import Path
import peft_tune_axolotl as adapter
trial = adapter.Trial.read()
print(adapter.train(Path({str(base)!r}), trial, Path({folder!r}, "reports" + sys.argv[1])))"""
            for content, ending in [("good", "(0, '')"), ("bad", "(1, 'broken\\n')")]:
                base.write_text(content)
                done = subprocess.run([sys.executable, "-c", adapter, content], capture_output=True, text=True,
                                      input='{"params": {}, "trial": 1, "seed": 0}\n', timeout=60,
                                      env={**os.environ, "PATH": folder + os.pathsep + os.environ["PATH"]})
                self.assertEqual(done.stdout.splitlines(), ['{"metrics": {"loss": 1.5}}', ending], done.stderr)

    def test_llamafactory_gets_its_own_names(self):
        one = trial(30, rank=8, alpha_ratio=2, target_modules=["q_proj", "v_proj"], micro_batch=2, global_batch=16,
                    precision="nf4_double", gradient_checkpointing="none", packing=True, sequence_length=512)
        config = train_of("llamafactory").configuration({"model_name_or_path": "m"}, one)
        self.assertEqual((config["lora_rank"], config["lora_alpha"], config["lora_target"]), (8, 16, "q_proj,v_proj"))
        self.assertEqual(config["gradient_accumulation_steps"], 8)
        self.assertEqual((config["quantization_bit"], config["double_quantization"]), (4, True))
        self.assertTrue(config["disable_gradient_checkpointing"] and config["neat_packing"])
        self.assertEqual((config["cutoff_len"], config["max_steps"]), (512, 30))

    def configurations(self, **params):
        """What axolotl's and LLaMA-Factory's adapters make of some parameters."""
        axolotl = peft_tune_axolotl.configuration({"adapter": "lora"}, trial(**params))
        return axolotl, train_of("llamafactory").configuration({"use_unsloth_gc": True}, trial(**params))

    def refused(self, message, *calls):
        for call in calls:
            with self.assertRaisesRegex(callback.Invalid, message):
                call()

    def adapters(self, **params):
        """The adapters, to be called with the same parameters."""
        axolotl = lambda: peft_tune_axolotl.configuration({"adapter": "lora"}, trial(**params))
        return axolotl, lambda: train_of("llamafactory").configuration({}, trial(**params))

    def test_every_optimizer_is_run_by_its_own_name_or_refused(self):
        for name, row in names.NAMES["optimizers"].items():
            for tool, run in zip(("axolotl", "llamafactory"), self.adapters(optimizer=name)):
                if row["keys"][tool] is None:
                    self.refused(f"`optimizer` {name}: {tool} has no such thing; it has adamw", run)
                else:
                    self.assertLessEqual(row["keys"][tool].items(), run().items())
        # Spellings of old.
        for adapter in self.adapters(optimizer="paged_adamw8bit"):
            self.assertIn("paged_adamw_8bit", adapter().values())

    def test_optimizers_have_their_own_constants(self):
        for adapter in self.adapters(optimizer="lion"):
            self.assertEqual(adapter()["adam_beta2"], 0.99)
        for adapter in self.adapters(optimizer="lion", beta2=0.9):
            self.assertEqual(adapter()["adam_beta2"], 0.9)
        for adapter in self.adapters(optimizer="sgd", nesterov=True):
            self.assertEqual(adapter()["optim_args"], "momentum=0.9,nesterov=true")

    def test_fp16_is_fp16(self):
        for adapter in self.adapters(precision="fp16"):
            self.assertEqual([adapter()[half] for half in ("fp16", "bf16")], [True, False])

    def test_double_quantisation_is_said(self):
        axolotl, llamafactory = self.configurations(precision="nf4_double")
        self.assertEqual((axolotl["adapter"], axolotl["load_in_4bit"]), ("qlora", True))
        self.assertTrue(axolotl["bnb_config_kwargs"]["bnb_4bit_use_double_quant"])
        self.assertEqual((llamafactory["quantization_bit"], llamafactory["double_quantization"]), (4, True))
        # What one precision says is gone with the next.
        config = peft_tune_axolotl.configuration(axolotl, trial(precision="bf16"))
        self.assertEqual((config["adapter"], config["load_in_4bit"]), ("lora", False))
        self.assertNotIn("bnb_config_kwargs", config)
        self.refused("`precision` nf5 is none of fp32, ", *self.adapters(precision="nf5"))

    def test_what_a_tool_cannot_recompute_is_refused(self):
        self.refused("`gradient_checkpointing` every_2: .* has no such thing; it has none, full, offload",
                     *self.adapters(gradient_checkpointing="every_2"))
        axolotl, llamafactory = self.configurations(gradient_checkpointing="offload")
        self.assertEqual((axolotl["gradient_checkpointing"], axolotl["activation_offloading"]), (True, True))
        self.assertEqual((llamafactory["disable_gradient_checkpointing"], llamafactory["use_unsloth_gc"]), (False, True))
        axolotl, llamafactory = self.configurations(gradient_checkpointing="full")
        self.assertEqual(axolotl["gradient_checkpointing"], True)
        self.assertEqual(llamafactory["disable_gradient_checkpointing"], False)
        self.assertNotIn("use_unsloth_gc", llamafactory)

    def test_a_warm_up_is_steps_or_a_share(self):
        for config in self.configurations(warmup=10):
            self.assertEqual((config["warmup_steps"], "warmup_ratio" in config), (10, False))
        for config in self.configurations(warmup=0.1):
            self.assertEqual((config["warmup_ratio"], "warmup_steps" in config), (0.1, False))
        axolotl, llamafactory = self.configurations(warmup=0, schedule="constant")
        self.assertEqual((axolotl["warmup_ratio"], axolotl["lr_scheduler"]), (1e-9, "constant"))
        self.assertEqual((llamafactory["warmup_steps"], llamafactory["lr_scheduler_type"]), (0, "constant"))
        self.assertNotIn("warmup_steps", axolotl)
        base = {"warmup_ratio": 0.5, "lr_scheduler": "constant"}
        config = peft_tune_axolotl.configuration(base, trial(25, warmup=0.1))
        self.assertEqual((config["warmup_steps"], config["lr_scheduler"]), (3, "constant_with_warmup"))
        self.assertNotIn("warmup_ratio", config)

    def test_a_schedule_has_its_arguments(self):
        for adapter in self.adapters(schedule="wsd", lr_decay=5, lr_decay_type="linear"):
            kwargs = adapter()["lr_scheduler_kwargs"]
            self.assertEqual(kwargs, {"num_decay_steps": 5, "decay_type": "linear", "min_lr_ratio": 0.1})
            self.assertIn("warmup_stable_decay", adapter().values())
        for adapter in self.adapters(steps=30, schedule="warmup_stable_decay", lr_decay=0.2):
            self.assertEqual(adapter()["lr_scheduler_kwargs"]["num_decay_steps"], 6)
        self.refused("`lr_decay`: the length", *self.adapters(schedule="wsd"))
        for adapter in self.adapters(schedule="cosine_with_min_lr", min_lr_rate=0.3):
            self.assertEqual(adapter()["lr_scheduler_kwargs"], {"min_lr_rate": 0.3})
        for adapter in self.adapters(schedule="cosine", min_lr_rate=0.3):
            self.assertTrue({"lr_scheduler_kwargs", "min_lr_rate"}.isdisjoint(adapter()))

    def test_a_schedule_free_optimizer_warms_up_by_itself(self):
        for adapter in self.adapters(steps=30, optimizer="adamw_schedulefree", schedule="cosine", warmup=0.1):
            said = adapter()
            self.assertIn("schedule_free_adamw", said.values())
            self.assertEqual(said.get("lr_scheduler_type", said.get("lr_scheduler")), "constant")
            self.assertEqual((said["warmup_steps"], "warmup_ratio" in said), (3, False))
        self.refused("`warmup`: this optimizer", *self.adapters(optimizer="adamw_schedulefree", warmup=0.1))

    def test_modules_of_a_preset_are_those_of_all_families(self):
        axolotl, llamafactory = self.configurations(target_modules="mlp")
        modules = ["gate_proj", "up_proj", "down_proj", "gate_up_proj", "input_linear", "output_linear"]
        self.assertEqual(axolotl["lora_target_modules"], modules)
        self.assertEqual(llamafactory["lora_target"], ",".join(modules))
        self.refused("`target_modules` qv: write one of all-linear", lambda: names.modules("qv"))

    def test_settings_without_a_key_are_refused_where_they_would_say_something(self):
        axolotl, _ = self.configurations(lora_bias=False, bias="none")
        self.assertTrue({"lora_bias", "bias"}.isdisjoint(axolotl))
        self.refused("`lora_bias`: axolotl has no such setting", lambda: self.configurations(lora_bias=True))
        self.refused("`init` gaussian: llamafactory has no such thing", self.adapters(init="gaussian")[1])
        axolotl, llamafactory = self.configurations(init="pissa", max_grad_norm="none", loraplus_ratio="none")
        self.assertEqual((axolotl["peft_init_lora_weights"], llamafactory["pissa_init"]), ("pissa", True))
        self.assertEqual((axolotl["max_grad_norm"], "loraplus_lr_ratio" in axolotl), (0.0, False))

    def test_a_refusal_is_an_outcome(self):
        one = trial(gradient_checkpointing="every_2")
        with callback.tuned(one):
            train_of("llamafactory").configuration({}, one)
        line = json.loads(one.output.getvalue())
        self.assertEqual((line["outcome"], "`gradient_checkpointing` every_2" in line["message"]), ("invalid", True))


if __name__ == "__main__":
    unittest.main()
