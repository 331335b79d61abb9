//! Trials that are stopped, that inherit from others, or that are repeated: the real binary with programs and with its
//! own engine.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

/// A folder with a study.
struct Study {
    folder: tempfile::TempDir,
}

impl Study {
    fn new(space: &str) -> Self {
        let folder = crate::folders::for_database();
        std::fs::write(folder.path().join("space.yaml"), space).unwrap();
        Self { folder }
    }

    /// A study on a program: its loss falls from above `x` towards it over 20 steps; `cost` is known after two of them, and
    /// is `width`. It notes when it is told to stop.
    fn of_program(rest: &str) -> Self {
        let head = "study: program\nbackend: {command: [sh, trial.sh]}\n\
                    objectives: [{metric: cost, known_after: 2, reference: 10}, {metric: loss, reference: 20}]\n";
        let study = Self::new(&format!("{head}{rest}"));
        std::fs::write(study.path("trial.sh"), PROGRAM).unwrap();
        study
    }

    fn of_engine(rest: &str) -> Self {
        let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
        let head = format!(
            "study: engine\nmodel: {assets}/base\n\
             data: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl}}\n",
            assets = assets.display()
        );
        Self::new(&format!("{head}{rest}"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn output(&self, arguments: &[&str]) -> Output {
        let mut command = crate::program();
        command.args(arguments).current_dir(self.folder.path());
        command
            .env("PEFT_TUNE_DB", self.path("study.db"))
            .env("PEFT_TUNE_CACHE", self.path("cache"));
        command.output().unwrap()
    }

    /// Runs a command that must end with this code and returns what it said.
    fn fails(&self, arguments: &[&str], code: i32) -> String {
        let output = self.output(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        errors
    }

    /// Runs a command that must succeed and returns what it printed.
    fn stdout(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn rows(&self, sql: &str) -> Vec<Value> {
        serde_json::from_str(&self.stdout(&["query", sql, "--format", "json"])).unwrap()
    }
}

const PROGRAM: &str = r#"
read -r line
value() { printf '%s' "$line" | sed "s/.*\"$1\":\([0-9]*\).*/\1/"; }
x=$(value x); width=$(value width)
trap 'echo "$x" >> stopped.txt; exit 1' TERM
step=0
while [ $step -lt 20 ]; do
  step=$((step + 1))
  awk "BEGIN { printf \"{\\\"step\\\": $step, \\\"metrics\\\": {\\\"loss\\\": %.6f, \\\"cost\\\": $width}}\\n\", $x + 3 / (1 + $step / 3) }"
  sleep 0.05
done
awk "BEGIN { printf \"{\\\"metrics\\\": {\\\"loss\\\": %.6f, \\\"cost\\\": $width}}\\n\", $x + 3 / (1 + 20 / 3) }"
"#;

#[test]
fn hopeless_trials_of_a_program_are_stopped_and_leave_their_curve() {
    let study = Study::of_program(
        "space: {x: [1, 3, 5, 7, 9], width: 2}\ntrial: {steps: 20}\nsampler: grid\nbudget: {trials: 5}\n",
    );
    study.stdout(&["search", "space.yaml"]);
    let pruned = study.rows(
        "select s.trial, s.step, s.rule, p.value as x,
                (select max(step) from trial_report as r where r.trial = s.trial) as reported,
                (select value from trial_metric as m where m.trial = s.trial and m.name = 'loss_at_least') as bound
         from trial_stop as s join trial_param as p on p.trial = s.trial and p.name = 'x' where s.state = 'pruned'",
    );
    // Wherever the grid begins, whatever comes after a better one has the same cost and a higher loss.
    assert!(!pruned.is_empty(), "{pruned:?}");
    for row in &pruned {
        assert_eq!(row["rule"], "dominance");
        let (step, x) = (row["step"].as_u64().unwrap(), row["x"].as_f64().unwrap());
        assert!((3..20).contains(&step), "{row}");
        assert_eq!(
            row["reported"].as_u64(),
            Some(step),
            "nothing is kept of what came after the stop"
        );
        // The bound is valid: it lies below where the trial would have ended.
        let bound = row["bound"].as_f64().unwrap();
        assert!(bound < x + 3.0 / (1.0 + 20.0 / 3.0), "{row}");
    }
    let stopped = std::fs::read_to_string(study.path("stopped.txt")).unwrap();
    assert_eq!(stopped.lines().count(), pruned.len(), "each was told to stop");
    assert_eq!(study.rows("select * from pareto_front").len(), 1);
    assert!(study.stdout(&["show"]).contains("hypervolume"));
}

#[test]
fn a_program_runs_only_as_far_as_something_is_unknown() {
    let study = Study::of_program(
        "space:\n  x: {choices: [1, 2], affects: [loss]}\n  width: {choices: [2, 3, 4], affects: [cost]}\n\
         trial: {steps: 20}\npruner: none\nsampler: grid\nbudget: {trials: 6}\n",
    );
    study.stdout(&["search", "space.yaml"]);
    let states = study.rows("select state, count(*) as n from trial_summary group by state");
    assert_eq!(states.len(), 1, "{states:?}");
    assert_eq!((&states[0]["state"], &states[0]["n"]), (&"complete".into(), &6.into()));
    // Two losses take 20 steps each, with one or two of the costs; each further cost takes 2, and the rest is known.
    let steps =
        study.rows("select sum(step) as steps from (select max(step) as step from trial_report group by trial)");
    let steps = steps[0]["steps"].as_u64().unwrap();
    assert!((42..=44).contains(&steps), "{steps}");
    let taken = study.rows("select trial, metric, source from trial_metric_source order by trial, metric");
    assert!(taken.len() >= 6, "{taken:?}");
    let ends = study.rows(
        "select p.value as x, m.value as loss from trial_metric as m
         join trial_param as p on p.trial = m.trial and p.name = 'x' where m.name = 'loss'",
    );
    for row in &ends {
        let x = row["x"].as_f64().unwrap();
        assert!(
            (row["loss"].as_f64().unwrap() - x - 3.0 / (1.0 + 20.0 / 3.0)).abs() < 1e-4,
            "{row}"
        );
    }
    let known = study.rows("select rule from trial_stop where state = 'complete'");
    assert!(
        !known.is_empty() && known.iter().all(|row| row["rule"] == "known"),
        "{known:?}"
    );
}

#[test]
fn a_study_ends_by_its_rule_and_says_so() {
    let study = Study::of_program(
        "space: {x: {low: 1, high: 1000}, width: 2}\ntrial: {steps: 20}\nsampler: random\n\
         stop: {least_gain: 0.5, patience: 2}\nbudget: {trials: 30}\n",
    );
    // All losses lie above the reference, or hardly below it: nothing is gained.
    let text = PROGRAM.replace("sleep 0.05", ":").replace("$x + 3", "1 + 3");
    std::fs::write(study.path("trial.sh"), text).unwrap();
    study.stdout(&["search", "space.yaml"]);
    let endings = study.rows("select kind, reason, trials from study_ending");
    assert_eq!(endings[0]["kind"], "stopped", "{endings:?}");
    assert!(endings[0]["trials"].as_u64().unwrap() < 30);
    assert!(study.stdout(&["show"]).contains("the last 2 trials added"));
}

#[test]
fn a_recommendation_of_a_program_is_repeated_where_the_file_asks_for_it() {
    let study = Study::of_program(
        "space: {x: [1, 2], width: 2}\ntrial: {steps: 20}\nsampler: grid\nbudget: {trials: 2}\n\
         confirm: {trials: 1, repeats: 4}\n",
    );
    std::fs::write(study.path("trial.sh"), PROGRAM.replace("sleep 0.05", ":")).unwrap();
    let text = study.stdout(&["search", "space.yaml"]);
    assert!(text.contains("confirmed by 2 repeats"), "{text}");
    let rows = study.rows("select metric, interval, repeats from trial_confirmation order by metric");
    // The program says the same each time, so two repeats are enough.
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(
        rows.iter()
            .all(|row| row["repeats"] == 2 && row["interval"].as_f64() == Some(0.0)),
        "{rows:?}"
    );
    let again = study.stdout(&["search", "space.yaml", "--json"]);
    let summary: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(summary["confirmed"].as_object().unwrap().len(), 1);
    assert_eq!(study.rows("select * from trial_confirmation"), rows_again(&study));
}

fn rows_again(study: &Study) -> Vec<Value> {
    study.rows("select * from trial_confirmation where repeats = 2")
}

#[test]
fn repeats_of_a_program_keep_to_their_share_of_the_time_whatever_it_measures() {
    let study = Study::of_program(
        "space: {x: [1, 2], width: 2}\ntrial: {steps: 20}\nsampler: grid\nbudget: {trials: 2, time: 12s}\n\
         confirm: {trials: 1, repeats: 100, interval: 0}\n",
    );
    // Another seed costs something else: no number of repeats is enough.
    let noisy = PROGRAM.replace("width=$(value width)", "width=$(value width).0$(($(value seed) % 7))");
    std::fs::write(study.path("trial.sh"), noisy.replace("sleep 0.05", "sleep 0.01")).unwrap();
    study.stdout(&["search", "space.yaml"]);
    let rows = study.rows(
        "select count(*) as runs, total(value) as spent, max(value) as longest from confirmation_run
         where name = 'repeat_wall_s'",
    );
    let of = |name: &str| rows[0][name].as_f64().unwrap();
    // A tenth of the time, beyond the two that give an interval.
    assert!(
        of("runs") >= 2.0 && of("spent") <= 1.2 + 2.0 * of("longest"),
        "{rows:?}"
    );
}

#[test]
fn a_profile_that_breaks_a_constraint_is_not_trained() {
    let study = Study::of_engine(
        "space: {rank: [2, 4], precision: fp32}\nconstraints: {throughput: \">= 100000000\"}\n\
         trial: {sequence_length: 96, profile_steps: 1, profile_warmup: 0, training_steps: 400, evaluation: {rows: 8}}\n\
         budget: {trials: 2}\nsampler: grid\n",
    );
    // Nothing that the constraint lets through: no success.
    let said = study.fails(&["search", "space.yaml"], 1);
    assert!(said.contains("none of the 2 trials succeeded"), "{said}");
    let stops = study.rows("select state, step, rule from trial_stop");
    assert_eq!(stops.len(), 2, "{stops:?}");
    for stop in &stops {
        assert_eq!(
            (&stop["state"], &stop["rule"]),
            (&"pruned".into(), &"constraint".into())
        );
        assert_eq!(stop["step"], 0);
    }
    let trained = study.rows("select count(*) as n from step where phase = 'train'");
    assert!(trained[0]["n"].as_u64().unwrap() < 100, "{trained:?}");
    let measured = study.rows("select throughput, loss from trial_summary");
    assert!(
        measured
            .iter()
            .all(|row| row["throughput"].as_f64().is_some() && row["loss"].is_null())
    );
}

#[test]
fn the_engine_s_recommendation_is_confirmed_by_longer_profiles() {
    let study = Study::of_engine(
        "space: {rank: [2, 4], precision: fp32}\nobjectives: [throughput, peak_memory]\n\
         trial: {sequence_length: 96, profile_steps: 1, profile_warmup: 0}\n\
         confirm: {trials: 1, repeats: 2, steps: 3}\nbudget: {trials: 2}\nsampler: grid\n",
    );
    let text = study.stdout(&["search", "space.yaml"]);
    assert!(
        text.contains("confirmed by 2 repeats: ") && text.contains("basis"),
        "{text}"
    );
    let runs = study.rows("select count(distinct repeat) as n from confirmation_run where name = 'throughput'");
    assert_eq!(runs[0]["n"], 2);
    let steps = study.rows("select value from confirmation_run where name = 'measured_steps'");
    assert!(steps.iter().all(|row| row["value"].as_f64() == Some(3.0)), "{steps:?}");
    study.stdout(&["export", "--format", "recipe", "--output", "out"]);
    let recipe = std::fs::read_to_string(study.path("out/recipe.yaml")).unwrap();
    assert!(recipe.contains("confirmed by 2 repeats"), "{recipe}");
}

#[test]
fn finalists_are_trained_again_with_other_seeds_until_the_allowance_is_spent() {
    let study = Study::of_engine(
        // Memory, not throughput: which setting is best must not depend on what else the machine does.
        "space: {rank: [2, 16], micro_batch: [1, 2], global_batch: 4, learning_rate: 5e-3, precision: fp32}\n\
         objectives: [peak_memory, loss]\n\
         trial: {sequence_length: 64, profile_steps: 1, profile_warmup: 0, training_steps: 6, evaluation: {rows: 8}}\n\
         confirm: {trials: 1, repeats: 2, steps: 2, interval: 0, trainings: 3}\nbudget: {trials: 4}\nsampler: grid\n",
    );
    let trained = || study.rows("select value from confirmation_run where name = 'loss'");
    study.stdout(&["search", "space.yaml"]);
    let losses: Vec<f64> = trained().iter().filter_map(|row| row["value"].as_f64()).collect();
    assert_eq!(losses.len(), 3, "{losses:?}");
    // Other seeds give other losses, and no cost is measured beside them.
    assert!(losses[0] != losses[1] && losses[1] != losses[2], "{losses:?}");
    let beside = study.rows(
        "select count(*) as n from confirmation_run a join confirmation_run b using (trial_id, repeat)
         where a.name = 'loss' and b.name = 'peak_memory'",
    );
    assert_eq!(beside[0]["n"], 0);
    // Variants with another micro-batch train the same, so what seeds say holds for both.
    let said = study
        .rows("select count(*) as n, count(distinct value) as values_ from trial_confirmation where metric = 'loss'");
    assert_eq!((&said[0]["n"], &said[0]["values_"]), (&4.into(), &2.into()));
    // Another search goes on from what was repeated, and repeats nothing twice.
    let text = study.stdout(&["search", "space.yaml"]);
    assert_eq!(trained().len(), 3);
    // The recommended setting has a mean of two seeds. (Whether its costs are confirmed too depends on how calm the machine is.)
    let confirmed = text
        .lines()
        .find(|line| line.trim_start().starts_with("confirmed by 2 repeats"));
    assert!(
        confirmed.is_some_and(|line| line.contains("loss") && line.contains('±')),
        "{text}"
    );
}

#[test]
fn finalists_and_the_same_at_half_their_rate_are_trained_longer() {
    let study = Study::of_engine(
        "space: {rank: [2, 4], learning_rate: {low: 4e-3, high: 3.2e-2, scale: log}, precision: fp32}\n\
         objectives: [throughput, loss]\nsampler: random\nseed: 4\n\
         trial: {sequence_length: 64, profile_steps: 1, profile_warmup: 0, training_tokens: 300, evaluation: {rows: 8}}\n\
         training: {length: {tokens: 4000}}\n\
         confirm: {trials: 1, repeats: 2, steps: 2, trainings: 0, longer: 12}\nbudget: {trials: 3}\n",
    );
    let text = study.stdout(&["search", "space.yaml"]);
    let longer = || {
        study.rows(
            "select a.value as tokens, count(*) as runs, min(b.value) as least from confirmation_run a
             join confirmation_run b using (trial_id, repeat)
             where a.name = 'longer_tokens' and b.name = 'loss_longer' group by 1 order by 1",
        )
    };
    let runs = longer();
    assert_eq!(runs.len(), 2, "{runs:?}");
    assert!(
        runs[0]["runs"].as_u64().unwrap() >= 2 && runs[1]["runs"] == 2,
        "{runs:?}"
    );
    // What is recommended has nearly the least loss that is expected at the full length.
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains(" at 4,000 tokens, by ") && said.contains("probability that this is within 1% of the best at"),
        "{text}"
    );
    // A setting at half a finalist's rate was trained behind the budget.
    let rates = study.rows("select learning_rate as rate, rank from trial order by number");
    assert!(rates.len() > 3, "{rates:?}");
    let half = rates[3]["rate"].as_f64().unwrap();
    let is_double =
        |row: &Value| row["rank"] == rates[3]["rank"] && (row["rate"].as_f64().unwrap() / half - 2.0).abs() < 0.9;
    assert!(rates[..3].iter().any(is_double), "{rates:?}");
    // Another search finds all of it done.
    study.stdout(&["search", "space.yaml"]);
    assert_eq!(longer(), runs);
    study.stdout(&["export", "--format", "recipe", "--output", "out"]);
    let recipe = std::fs::read_to_string(study.path("out/recipe.yaml")).unwrap();
    assert!(recipe.contains("trainings made longer"), "{recipe}");
}

#[test]
fn steps_of_a_warm_up_are_those_of_the_full_training() {
    let study = Study::of_engine(
        "space: {rank: 4, warmup: [0.15, 10], learning_rate: 5e-3, precision: fp32}\n\
         objectives: [peak_memory, loss]\nsampler: grid\nconfirm: none\npruner: none\n\
         trial: {sequence_length: 64, profile_steps: 1, profile_warmup: 0, training_steps: 6, evaluation: {rows: 8}}\n\
         training: {length: {steps: 60}}\nbudget: {trials: 2}\n",
    );
    let output = study.output(&["search", "space.yaml"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && told.contains("steps of `warmup` are the full training's"),
        "{told}"
    );
    // A step of six is the share that ten are of sixty.
    let losses = study.rows("select value from metric where name = 'loss'");
    assert!(
        losses.len() == 2 && losses[0]["value"] == losses[1]["value"],
        "{losses:?}"
    );
    // The setting is the one that was asked for.
    let warmups = study.rows("select warmup from trial order by warmup");
    assert_eq!(warmups[1]["warmup"], 10.0);
}

#[test]
fn a_study_with_too_few_trainings_for_longer_ones_says_how_many_are_enough() {
    let study = Study::of_engine(
        "space: {rank: [2, 4], micro_batch: [1, 2], global_batch: 2, learning_rate: 5e-3, precision: fp32}\n\
         objectives: [peak_memory, loss]\nsampler: grid\n\
         trial: {sequence_length: 64, profile_steps: 1, profile_warmup: 0, training_tokens: 300, evaluation: {rows: 8}}\n\
         training: {length: {tokens: 4000}}\nbudget: {trials: 2}\n",
    );
    let told = |arguments: &[&str]| {
        let output = study.output(arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}");
        told
    };
    let of_trials = told(&["search", "space.yaml"]);
    assert!(
        of_trials.contains(
            "no finalist was trained longer: the choice goes by 2 short trainings, and 16 are enough, or 4 with a \
             `budget: {time: ..}`, for longer ones"
        ),
        "{of_trials}"
    );
    let of_time = told(&["search", "space.yaml", "--time", "10m"]);
    assert!(
        of_time.contains("goes by 2 short trainings, and 4 are enough for longer ones"),
        "{of_time}"
    );
}

#[test]
fn a_search_finds_how_long_the_full_training_should_be() {
    let study = Study::of_engine(
        "space: {rank: [2, 4], learning_rate: {low: 4e-3, high: 3.2e-2, scale: log}, precision: fp32}\n\
         objectives: [throughput, loss]\nsampler: random\nseed: 4\n\
         trial: {sequence_length: 64, profile_steps: 1, profile_warmup: 0, training_tokens: 300, evaluation: {rows: 8}}\n\
         training: {length: auto}\n\
         confirm: {trials: 1, repeats: 2, steps: 2, trainings: 0, longer: 12}\nbudget: {trials: 3}\n",
    );
    let output = study.output(&["search", "space.yaml"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && told.contains("until then one epoch stands in for it"),
        "{told}"
    );
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = words(&String::from_utf8_lossy(&output.stdout));
    // All trials that were trained longer say the same of the length, and the recommendation is for it.
    let found = || {
        study.rows(
            "select distinct f.value as tokens, g.value as gain, e.value as epoch from confirmation f
             join confirmation g using (trial_id) join confirmation e using (trial_id)
             where f.name = 'full_tokens' and g.name = 'doubling_gain' and e.name = 'epoch_tokens'",
        )
    };
    let rows = found();
    assert_eq!(rows.len(), 1, "{rows:?}");
    let of = |name: &str| rows[0][name].as_f64().unwrap();
    let (tokens, longest) = (of("tokens"), longest_tokens(&study));
    assert!(
        tokens >= 300.0 && tokens <= 10.0 * longest && tokens <= of("epoch").max(2.0 * longest),
        "{rows:?}"
    );
    let is_known = |text: &str| {
        [
            "no longer pays: doubling",
            "not known beyond: doubling",
            "is too long: the loss",
        ]
        .iter()
        .any(|part| text.contains(part))
    };
    assert!(is_known(&said) && said.contains(" epochs)"), "{said}");
    // What is exported is as long, and says why; so it is of a trial that is named.
    for (folder, more) in [("out", vec![]), ("named", vec!["--trial", "0"])] {
        let arguments = ["export", "--format", "recipe", "--output", folder];
        study.stdout(&[&arguments[..], &more[..]].concat());
        let recipe = std::fs::read_to_string(study.path(&format!("{folder}/recipe.yaml"))).unwrap();
        assert!(
            recipe.contains(&format!("tokens: {tokens}")) && is_known(&words(&recipe)),
            "{recipe}"
        );
    }
    for command in ["explain", "status"] {
        assert!(is_known(&words(&study.stdout(&[command]))), "{command}");
    }
    // Another search finds it done.
    study.stdout(&["search", "space.yaml"]);
    assert_eq!(found(), rows);
}

/// Tokens of the longest training of a study.
fn longest_tokens(study: &Study) -> f64 {
    let rows = study.rows("select max(value) as tokens from confirmation_run where name = 'longer_tokens'");
    rows[0]["tokens"].as_f64().unwrap()
}

#[test]
fn a_length_that_no_longer_training_says_is_one_epoch() {
    let study = Study::of_engine(
        "space: {rank: [2, 4], precision: fp32}\nobjectives: [throughput, loss]\nsampler: grid\n\
         trial: {sequence_length: 64, profile_steps: 1, profile_warmup: 0, training_tokens: 300, evaluation: {rows: 8}}\n\
         training: {length: auto}\nconfirm: {trials: 1, repeats: 1, steps: 2}\nbudget: {trials: 2}\n",
    );
    let said = study.stdout(&["search", "space.yaml"]);
    let unknown = "one epoch stands in for it";
    assert!(
        said.split_whitespace().collect::<Vec<_>>().join(" ").contains(unknown),
        "{said}"
    );
    study.stdout(&["export", "--format", "recipe", "--output", "out"]);
    let recipe = std::fs::read_to_string(study.path("out/recipe.yaml")).unwrap();
    assert!(recipe.contains("epochs: 1") && recipe.contains(unknown), "{recipe}");
}

#[test]
fn a_small_study_is_confirmed_by_no_more_repeats_than_it_has_trials() {
    let study = Study::of_engine(
        "space: {rank: [2, 4], precision: fp32}\nobjectives: [throughput, peak_memory]\n\
         trial: {sequence_length: 96, profile_steps: 1, profile_warmup: 0}\n\
         confirm: {steps: 2, interval: 0}\nbudget: {trials: 2}\nsampler: grid\n",
    );
    let repeats = || {
        let rows = study.rows("select count(*) as n from (select distinct trial_id, repeat from confirmation_run)");
        rows[0]["n"].clone()
    };
    // One repeat would say nothing about its own spread.
    study.stdout(&["search", "space.yaml", "--trials", "1"]);
    assert_eq!(repeats(), 0);
    study.stdout(&["search", "space.yaml"]);
    assert_eq!(repeats(), 2);
    // What was repeated before counts.
    study.stdout(&["search", "space.yaml"]);
    assert_eq!(repeats(), 2);
}

#[test]
fn a_training_that_evaluates_on_its_way_is_judged_there() {
    let study = Study::of_engine(
        "space: {learning_rate: [1e-6, 1e-2], precision: fp32}\nobjectives: [loss]\npruner: {kind: asha, eta: 2}\n\
         trial: {sequence_length: 96, training_steps: 16, evaluation: {rows: 8, times: 8}}\n\
         budget: {trials: 2}\nsampler: grid\n",
    );
    study.stdout(&["search", "space.yaml"]);
    let curves = study.rows("select trial, count(*) as n from trial_report where metric = 'loss' group by trial");
    assert_eq!(curves.len(), 2);
    assert!(curves.iter().any(|row| row["n"] == 8), "{curves:?}");
    let states = study.rows("select state, reason from trial_summary order by trial");
    // The grid may begin with either; only the worse one that comes second is stopped.
    assert_eq!(states[0]["state"], "complete");
    if states[1]["state"] == "pruned" {
        assert!(
            states[1]["reason"].as_str().unwrap().starts_with("asha: rank 2 of 2"),
            "{states:?}"
        );
    }
}

#[test]
fn trials_of_different_sequence_lengths_are_scored_on_the_same_targets() {
    let study = Study::of_engine(
        "space: {rank: 2, sequence_length: [24, 48, 96], micro_batch: 8, learning_rate: 0.003}\nsampler: grid\n\
         trial: {training_tokens: 2k, profile_steps: 1, profile_warmup: 1, evaluation: {rows: 20, times: 1}}\n\
         budget: {trials: 3}\nconfirm: none\n",
    );
    study.stdout(&["search", "space.yaml"]);
    let scored = study.rows("select distinct target_tokens from evaluation");
    assert_eq!(scored.len(), 1, "{scored:?}");
    let losses = study.rows("select distinct loss from evaluation");
    assert_eq!(losses.len(), 3, "each length has a loss of its own: {losses:?}");
}
