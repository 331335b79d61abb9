-- The results database: the one schema of the first release. Its number goes on behind those of development, whose
-- files are refused by name; changes after the release are files beside this one, each with its reason.

-- Marks the file as a results database of this program ("ptun"), so that no other program's file is ever written.
pragma application_id = 1886680430;

-- Studies and what they were asked. Every other table hangs on a study.

-- Facts about the database file itself.
create table note (
    name text primary key,              -- What the note tells, such as `created_by`.
    value text not null                 -- The fact.
) strict, without rowid;

-- Machines that trials ran on; one row for each different set of facts.
create table machine (
    id integer primary key,             -- Identity; other tables refer to it.
    host text not null,                 -- Host name.
    os text not null,                   -- Operating system and its version.
    cpu text not null,                  -- Processor model.
    cpu_cores integer not null,         -- Logical cores.
    memory_bytes integer not null,      -- Main memory, in bytes.
    device text not null,               -- What trained: `cpu`, or the GPU's name.
    device_memory_bytes integer not null, -- Memory of that device, in bytes; main memory for `cpu`.
    driver text not null,               -- Driver version of the device; empty for `cpu`.
    unique (host, os, cpu, cpu_cores, memory_bytes, device, device_memory_bytes, driver)
) strict;

-- Base models that studies tuned.
create table model (
    id integer primary key,             -- Identity; other tables refer to it.
    source text not null,               -- Directory or hub id, as the recipe has it.
    fingerprint text not null,          -- Hash that tells two models of one source apart; empty where not known.
    architecture text not null,         -- Family, such as `qwen2`; empty where not known.
    parameters integer,                 -- Number of weights of the base model.
    unique (source, fingerprint)
) strict;

-- Data sets that studies trained on.
create table data_set (
    id integer primary key,             -- Identity; other tables refer to it.
    source text not null,               -- Training file(s), as the recipe has them.
    fingerprint text not null,          -- Hash that tells two states of one file apart; empty where not known.
    rows integer,                       -- Training rows.
    tokens integer,                     -- Training tokens.
    held_out_rows integer,              -- Held-out rows that the loss is measured on.
    unique (source, fingerprint)
) strict;

-- One tuning run each: search space, objectives and seed.
create table study (
    id integer primary key,             -- Identity; other tables refer to it.
    name text not null unique check (name <> ''), -- The `study:` of the search-space file.
    space_path text not null,           -- Search-space file that began the study.
    space_text text not null,           -- That file's text, as it was last run.
    definition text not null check (json_valid(definition)), -- JSON of everything that decides what a trial means.
    definition_hash text not null,      -- SHA-256 of the definition, objectives and constraints, in hexadecimal.
    seed integer not null,              -- Seed of every random number of the study (64 bits, shown signed).
    sampler text not null,              -- Sampler that proposes the params.
    model_id integer references model (id), -- Base model that is tuned.
    data_set_id integer references data_set (id), -- Data that it is tuned on.
    machine_id integer references machine (id), -- Machine that ran the study last.
    created_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When the study began (UTC, ISO 8601).
    resumed_at text                     -- When it was last resumed (UTC, ISO 8601).
) strict;

-- What a study trades off. At most six, because `pareto_front` compares them as six columns.
create table study_objective (
    study_id integer not null references study (id) on delete cascade, -- Study.
    position integer not null check (position between 0 and 5), -- Place in the search-space file, from 0.
    metric text not null,               -- Metric that trials report.
    direction text not null check (direction in ('minimize', 'maximize')), -- Which way is better.
    reference real,                     -- Reference value of the hypervolume, in the metric's unit.
    known_after integer,                -- Steps after which the metric is known; null where only the end tells.
    primary key (study_id, position),
    unique (study_id, metric)
) strict, without rowid;

-- Bounds that a trial must keep to be on the front.
create table study_constraint (
    study_id integer not null references study (id) on delete cascade, -- Study.
    position integer not null,          -- Place in the search-space file, from 0.
    metric text not null,               -- Metric that is bounded.
    bound text not null check (bound in ('at_most', 'at_least')), -- Which side of the limit is allowed; the limit is.
    "limit" real not null,              -- Limit, in the metric's unit.
    primary key (study_id, position)
) strict, without rowid;

-- Trials with their params, outcome and metrics. A trial is committed when it starts and when it ends.

-- One evaluation of params each. The recipe's columns are computed from its JSON, so that they cannot disagree with it.
create table trial (
    id integer primary key,             -- Identity; other tables refer to it.
    study_id integer not null references study (id) on delete cascade, -- Study.
    number integer not null check (number >= 0), -- Number within the study, from 0.
    state text not null check (state in ('waiting', 'running', 'complete', 'pruned', 'failed', 'skipped')), -- How it ended, or that it has not.
    reason text,                        -- Why: kind of failure, rule that pruned, or why it was skipped.
    detail text check (detail is null or json_valid(detail)), -- JSON of the reason with its numbers.
    phase text check (phase in ('load', 'profile', 'train', 'evaluate')), -- Phase it is in, or in which it failed.
    attempt integer not null check (attempt >= 1), -- Times it was started; above 1 where a killed search repeated it.
    machine_id integer references machine (id), -- Machine that ran it.
    recipe text check (recipe is null or json_valid(recipe)), -- JSON of the complete recipe; null with a command backend, and for params that make none.
    started_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When the last attempt started (UTC, ISO 8601).
    ended_at text,                      -- When it ended (UTC, ISO 8601).
    wall_s real check (wall_s >= 0 and wall_s <= 1.7976931348623157e308), -- Wall-clock seconds of the last attempt.
    rank integer generated always as (recipe ->> '$.adapter.rank') stored, -- Rank r; null in full fine-tuning, as all adapter columns.
    alpha real generated always as (recipe ->> '$.adapter.alpha') stored, -- Numerator of the scaling.
    dropout real generated always as (recipe ->> '$.adapter.dropout') stored, -- Adapter dropout, in [0, 1).
    target_modules text generated always as (
        case json_type(recipe, '$.adapter.target_modules')
            when 'array' then replace(replace(replace(recipe ->> '$.adapter.target_modules', '["', ''), '"]', ''), '","', ',')
            else recipe ->> '$.adapter.target_modules'
        end
    ) stored,                           -- Adapted modules, separated by commas, or a preset's name.
    micro_batch integer generated always as (recipe ->> '$.batch.micro_batch') stored, -- Rows that go through the model at once.
    gradient_accumulation integer generated always as (recipe ->> '$.batch.gradient_accumulation') stored, -- Micro-batches in a step.
    sequence_length integer generated always as (recipe ->> '$.batch.sequence_length') stored, -- Longest row, in tokens.
    packing integer generated always as (recipe ->> '$.batch.packing') stored, -- Whether rows hold several documents: 1 or 0.
    precision text generated always as (recipe ->> '$.precision') stored, -- Storage of the base weights.
    gradient_checkpointing text generated always as (recipe ->> '$.gradient_checkpointing') stored, -- Which activations are recomputed.
    optimizer text generated always as (recipe ->> '$.optimizer.kind') stored, -- Update rule.
    learning_rate real generated always as (recipe ->> '$.optimizer.learning_rate') stored, -- Peak learning rate.
    schedule text generated always as (recipe ->> '$.schedule.kind') stored, -- Course of the learning rate.
    warmup real generated always as (recipe ->> '$.schedule.warmup') stored, -- Warm-up: steps (1 or more) or fraction of all steps.
    weight_decay real generated always as (recipe ->> '$.optimizer.weight_decay') stored, -- Decoupled weight decay.
    rslora integer generated always as (recipe ->> '$.adapter.rslora') stored, -- Whether the scaling is rank-stabilised: 1 or 0.
    dora integer generated always as (recipe ->> '$.adapter.dora') stored, -- Whether the adapter is weight-decomposed: 1 or 0.
    unique (study_id, number)
) strict;

-- Counts by state are asked for by every progress line and by `studies`; without it they read each recipe's page.
create index trial_study_state on trial (study_id, state);

-- Sampled values; `trial_param` shows them by study and trial.
create table param (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    name text not null,                 -- Name of the parameter.
    json text not null check (json_valid(json)), -- The value as JSON, which keeps its type exactly.
    value any not null,                 -- The value as SQL has it: integer, real or text; true is 1; a list has commas.
    primary key (trial_id, name)
) strict, without rowid;

-- "Which trials had rank 8?" over all studies.
create index param_name_value on param (name, value);

-- Measured numbers; `trial_metric` shows them by study and trial. NaN and infinities are refused, as nothing can sort them.
create table metric (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    name text not null,                 -- Name of the metric.
    value real not null check (value between -1.7976931348623157e308 and 1.7976931348623157e308), -- Value, in the metric's unit.
    primary key (trial_id, name)
) strict, without rowid;

-- "Which trials were the fastest?" without reading every trial.
create index metric_name_value on metric (name, value);

-- What happened inside a trial: the courses of training and of the held-out loss.

-- Optimizer steps. Keyed by what they are read by, so that a curve is one range of one b-tree.
create table step (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    phase text not null check (phase in ('load', 'profile', 'train', 'evaluate')), -- `profile` (measuring) or `train`.
    step integer not null,              -- Number of the step within its phase, from 1.
    loss real,                          -- Training loss before the step, in nats per target token; null where not finite.
    learning_rate real,                 -- Learning rate of the step.
    grad_norm real,                     -- Global norm of the gradients before clipping; null where not finite.
    tokens integer not null,            -- Tokens that went through the model, padding not counted.
    target_tokens integer not null,     -- Tokens that counted in the loss.
    data_s real,                        -- Seconds waiting for the batch.
    forward_s real,                     -- Seconds of the forward pass.
    backward_s real,                    -- Seconds of the backward pass, recomputation included.
    optimizer_s real,                   -- Seconds of clipping and update.
    total_s real,                       -- Seconds of the whole step.
    primary key (trial_id, phase, step)
) strict, without rowid;

-- Evaluations on the held-out set.
create table evaluation (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    step integer not null,              -- Optimizer steps taken before it.
    tokens integer not null,            -- Training tokens seen before it.
    loss real,                          -- Held-out loss, in nats per target token; null where not finite.
    accuracy real,                      -- Share of target tokens predicted right, in [0, 1].
    target_tokens integer not null,     -- Held-out tokens that counted.
    seconds real,                       -- Seconds that it took.
    primary key (trial_id, step)
) strict, without rowid;

-- The views people query. Their names and columns are the program's public interface.

-- Sampled values of each trial.
create view trial_param as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study.
    param.name as name,                 -- Name of the parameter.
    param.value as value                -- Value: integer, real or text; true is 1; a list has commas.
from param
join trial on trial.id = param.trial_id
join study on study.id = trial.study_id;

-- Measured numbers of each trial.
create view trial_metric as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study.
    metric.name as name,                -- Name of the metric.
    metric.value as value               -- Value, in the metric's unit.
from metric
join trial on trial.id = metric.trial_id
join study on study.id = trial.study_id;

-- Optimizer steps of each trial.
create view trial_step as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study.
    step.phase as phase,                -- `profile` (measuring) or `train`.
    step.step as step,                  -- Number of the step within its phase, from 1.
    step.loss as loss,                  -- Training loss before the step, in nats per target token; null where not finite.
    step.learning_rate as learning_rate, -- Learning rate of the step.
    step.grad_norm as grad_norm,        -- Global norm of the gradients before clipping; null where not finite.
    step.tokens as tokens,              -- Tokens that went through the model, padding not counted.
    step.target_tokens as target_tokens, -- Tokens that counted in the loss.
    step.data_s as data_s,              -- Seconds waiting for the batch.
    step.forward_s as forward_s,        -- Seconds of the forward pass.
    step.backward_s as backward_s,      -- Seconds of the backward pass, recomputation included.
    step.optimizer_s as optimizer_s,    -- Seconds of clipping and update.
    step.total_s as total_s             -- Seconds of the whole step.
from step
join trial on trial.id = step.trial_id
join study on study.id = trial.study_id;

-- Evaluations of each trial on the held-out set.
create view trial_evaluation as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study.
    evaluation.step as step,            -- Optimizer steps taken before it.
    evaluation.tokens as tokens,        -- Training tokens seen before it.
    evaluation.loss as loss,            -- Held-out loss, in nats per target token; null where not finite.
    evaluation.accuracy as accuracy,    -- Share of target tokens predicted right, in [0, 1].
    evaluation.target_tokens as target_tokens, -- Held-out tokens that counted.
    evaluation.seconds as seconds       -- Seconds that it took.
from evaluation
join trial on trial.id = evaluation.trial_id
join study on study.id = trial.study_id;

-- Values that a trial took over from another one: settings that cannot change them had been measured already.

-- What a trial did not measure itself.
create table inheritance (
    trial_id integer not null references trial (id) on delete cascade, -- Trial that took the values over.
    part text not null check (part in ('cost', 'loss')), -- `cost`: throughput, memory and times; `loss`: loss and accuracy.
    source_id integer not null references trial (id) on delete cascade, -- Trial that measured them.
    primary key (trial_id, part)
) strict, without rowid;

-- Deleting a source looks for those that took over from it.
create index inheritance_source on inheritance (source_id);

-- What each trial took over, by name and number.
create view trial_inherited as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial that took the values over.
    inheritance.part as part,           -- `cost` (throughput, memory and times) or `loss` (loss and accuracy).
    source.number as source             -- Number of the trial that measured them.
from inheritance
join trial on trial.id = inheritance.trial_id
join trial as source on source.id = inheritance.source_id
join study on study.id = trial.study_id;

-- What a trial told on its way, why it was stopped before its end, what was measured again, and why a study ended.

-- Metrics that a program of the user's reported on its way; the native engine's are in `evaluation`.
create table report (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    step integer not null,              -- Steps of training that the report stands for.
    name text not null,                 -- Name of the metric.
    value real not null check (value between -1.7976931348623157e308 and 1.7976931348623157e308), -- Value, in the metric's unit.
    primary key (trial_id, step, name)
) strict, without rowid;

-- Trials that were stopped before they ran all their steps.
create table stop (
    trial_id integer primary key references trial (id) on delete cascade, -- Trial.
    step integer not null,              -- Steps of training it had done when it was stopped; 0 after the profile phase.
    rule text not null,                 -- Rule that stopped it, such as `dominance` or `known`.
    reason text not null                -- The rule's reason with its numbers.
) strict;

-- Metrics that a command's trial took over from one whose params agree in everything that can change them.
create table metric_inheritance (
    trial_id integer not null references trial (id) on delete cascade, -- Trial that took the value over.
    metric text not null,               -- Metric that was taken over.
    source_id integer not null references trial (id) on delete cascade, -- Trial that measured it.
    primary key (trial_id, metric)
) strict, without rowid;

-- Deleting a source looks for those that took over from it.
create index metric_inheritance_source on metric_inheritance (source_id);

-- What the sampler expected of a trial when it proposed it.
create table proposal (
    trial_id integer primary key references trial (id) on delete cascade, -- Trial.
    expected_improvement real not null  -- Hypervolume that the trial was expected to add, in the product of the objectives' units.
) strict;

-- Measurements of trials that were repeated to be sure of them, before a recommendation is final.
create table confirmation_run (
    trial_id integer not null references trial (id) on delete cascade, -- Trial whose params were run again.
    repeat integer not null check (repeat >= 1), -- Number of the repeat, from 1.
    name text not null,                 -- Name of the metric.
    value real not null check (value between -1.7976931348623157e308 and 1.7976931348623157e308), -- Value, in the metric's unit.
    primary key (trial_id, repeat, name)
) strict, without rowid;

-- What the repeats of a trial say together.
create table confirmation (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    name text not null,                 -- Name of the metric.
    value real not null,                -- Mean over the repeats; the highest for `peak_memory`.
    interval real not null,             -- Half width of the mean's 95% interval, as a share of the mean.
    repeats integer not null,           -- Repeats it comes from.
    primary key (trial_id, name)
) strict, without rowid;

-- Why each run of a study ended.
create table ending (
    id integer primary key,             -- Identity.
    study_id integer not null references study (id) on delete cascade, -- Study.
    ended_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When (UTC, ISO 8601).
    kind text not null check (kind in ('trials_done', 'time_spent', 'exhausted', 'interrupted', 'stopped')), -- What ended it; `stopped` is its `stop` rule.
    reason text not null,               -- The reason in words, with its numbers.
    trials integer not null             -- Finished trials by then.
) strict;

-- A study's endings are read by study.
create index ending_study on ending (study_id);

-- Trials that were stopped early, with the rule. A complete one knew everything by then.
create view trial_stop as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    trial.state as state,               -- `pruned`, or `complete` where nothing was left to learn.
    stop.step as step,                  -- Steps of training it had done; 0 after the profile phase.
    stop.rule as rule,                  -- Rule that stopped it.
    stop.reason as reason               -- The rule's reason with its numbers.
from stop
join trial on trial.id = stop.trial_id
join study on study.id = trial.study_id;

-- Where the metrics that a command's trial did not measure itself come from.
create view trial_metric_source as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial that took the value over.
    metric_inheritance.metric as metric, -- Metric that was taken over.
    source.number as source             -- Number of the trial that measured it.
from metric_inheritance
join trial on trial.id = metric_inheritance.trial_id
join trial as source on source.id = metric_inheritance.source_id
join study on study.id = trial.study_id;

-- What was measured again, with its 95% interval.
create view trial_confirmation as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    confirmation.name as metric,        -- Name of the metric.
    confirmation.value as value,        -- Mean over the repeats; the highest for `peak_memory`.
    confirmation.interval as interval,  -- Half width of the mean's 95% interval, as a share of the mean.
    confirmation.repeats as repeats     -- Repeats it comes from.
from confirmation
join trial on trial.id = confirmation.trial_id
join study on study.id = trial.study_id;

-- Why each run of a study ended, the latest last.
create view study_ending as
select
    study.name as study,                -- Name of the study.
    ending.ended_at as ended_at,        -- When (UTC, ISO 8601).
    ending.kind as kind,                -- `trials_done`, `time_spent`, `exhausted`, `interrupted` or `stopped`.
    ending.reason as reason,            -- The reason in words, with its numbers.
    ending.trials as trials             -- Finished trials by then.
from ending
join study on study.id = ending.study_id
order by ending.id;

-- What a trial was expected to measure.

-- Predicted metrics of trials, as they were before the trial ran.
create table prediction (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    metric text not null,               -- Metric, such as `throughput`.
    value real not null,                -- Expected value, in the metric's unit.
    deviation real not null check (deviation >= 0), -- Relative standard deviation of the expectation's error.
    primary key (trial_id, metric)
) strict, without rowid;

-- Predicted beside measured, one row a trial and metric.
create view trial_prediction as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study.
    prediction.metric as metric,        -- Metric.
    prediction.value as predicted,      -- What was expected before the trial ran.
    prediction.deviation as deviation,  -- Relative standard deviation of the expectation's error.
    metric.value as measured,           -- What was measured; null where it was not.
    cast(metric.value / prediction.value - 1 as real) as error -- Measured over predicted, minus one.
from prediction
join trial on trial.id = prediction.trial_id
join study on study.id = trial.study_id
left join metric on metric.trial_id = prediction.trial_id and metric.name = prediction.metric;

-- Indexes for the questions that people ask of large databases: lists of studies, whole dumps of one metric or param.

-- Wall time of a study's trials, which `studies` adds up; without it each trial's recipe is read from the disk.
create index trial_study_wall on trial (study_id, wall_s);

-- Trials by why they ended, for lists of failures; those without a reason take no room.
create index trial_reason on trial (study_id, reason) where reason is not null;

-- The last evaluation of each trial by its loss, for learning curves across trials.
create index evaluation_step_loss on evaluation (trial_id, step, loss, tokens);

-- What people ask of a study while another process runs it: pages and scripts write, the study loop reads.

-- Requests to a study, in the order in which they were made.
create table request (
    id integer primary key,             -- Identity; later requests have larger ones.
    study_id integer not null references study (id) on delete cascade, -- Study.
    kind text not null check (kind in ('pause', 'resume', 'stop', 'enqueue')), -- What is asked for.
    params text check (params is null or json_valid(params)), -- JSON of the setting to run, for `enqueue`.
    made_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When it was made (UTC, ISO 8601).
    outcome text check (outcome in ('done', 'refused', 'expired')), -- What became of it; null while it waits.
    detail text,                        -- Why it was refused, or number of the trial that ran the setting.
    check ((kind = 'enqueue') = (params is not null))
) strict;

-- The study loop looks for waiting requests a few times a second, and there are seldom any.
create index request_waiting on request (study_id, id) where outcome is null;

-- Settings measured in depth: where a step's time and memory went, and what would help.

-- One profile of one setting each.
create table profile (
    id integer primary key,             -- Identity; `compare` and other tables refer to it.
    trial_id integer references trial (id) on delete set null, -- Trial whose recipe it is; null for a recipe file.
    name text not null,                 -- Recipe file, or study and number of the trial.
    machine_id integer references machine (id), -- Machine that ran it.
    created_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When it was made (UTC, ISO 8601).
    recipe text not null check (json_valid(recipe)), -- JSON of the recipe.
    tokens_per_s real not null check (tokens_per_s between 0 and 1.7976931348623157e308), -- Median throughput, padding not counted.
    interval real check (interval between 0 and 1.7976931348623157e308), -- Half width of its 95% confidence interval, relative.
    measured_steps integer not null,    -- Steps behind the median.
    peak_memory_bytes integer not null, -- Highest device bytes in use, the process's own left out.
    mfu real,                           -- Model FLOPs per second over the device's peak; null where that is not known.
    hfu real,                           -- The same with recomputation counted.
    joules_per_token real,              -- Energy for a trained token; null where the machine does not tell.
    document text not null check (json_valid(document)) -- JSON of the whole profile: modules, timeline of the memory, single steps.
) strict;

-- The profiles of a trial are looked for when it is shown.
create index profile_trial on profile (trial_id);

-- Phases of a profile's steps.
create table phase (
    profile_id integer not null references profile (id) on delete cascade, -- Profile.
    position integer not null,          -- Place in the step, from 0.
    phase text not null,                -- `data`, `host_to_device`, `forward`, `backward`, `recompute` (within backward), `optimizer`, `idle`; `evaluation` beside the steps.
    seconds real not null,              -- Median seconds in a step; of one evaluation.
    interval real,                      -- Half width of the median's 95% confidence interval, relative; null of an evaluation.
    share real not null,                -- Part of the step's time, in [0, 1]; of an evaluation: all evaluations' part of the training's time.
    op_seconds real not null,           -- Mean seconds in a step that ops took; the rest is what the host does between them.
    primary key (profile_id, position)
) strict, without rowid;

-- Ops of a profile's steps, summed over the calls of one shape in one phase.
create table op_profile (
    profile_id integer not null references profile (id) on delete cascade, -- Profile.
    position integer not null,          -- Rank by time, from 0.
    name text not null,                 -- Op, such as `matmul_nt`.
    phase text not null,                -- Phase it ran in.
    shape text not null,                -- Its dimensions; `T` counts tokens.
    storage text not null,              -- Storage of its largest operand, such as `bf16` or `nf4`.
    calls real not null,                -- Mean calls in a step.
    seconds real not null,              -- Mean seconds in a step.
    share real not null,                -- Part of the step's time, in [0, 1].
    flops real not null,                -- Mean FLOPs in a step.
    bytes real not null,                -- Mean bytes in a step that must move at least.
    gflop_per_s real not null,          -- 10^9 FLOPs per second.
    gb_per_s real not null,             -- 10^9 bytes per second.
    roofline_share real,                -- Least seconds that the machine allows over those taken; null where its ceilings are not known.
    primary key (profile_id, position)
) strict, without rowid;

-- The device while a profile was measured.
create table device_sample (
    profile_id integer not null references profile (id) on delete cascade, -- Profile.
    at_s real not null,                 -- Seconds since it began.
    device text not null,               -- Device that was looked at.
    utilisation real,                   -- Part of it that was busy, in [0, 1].
    process_cores real,                 -- Cores that the training kept busy.
    other_cores real,                   -- Cores that other processes kept busy.
    resident_bytes integer,             -- Resident set size of the process.
    memory_bytes integer,               -- Memory of the device that was taken.
    power_w real,                       -- Power, in watts.
    temperature_c real,                 -- Temperature, in degrees Celsius.
    clock_mhz real,                     -- Clock, in MHz.
    throttled integer,                  -- Whether it said that it held its clock down: 1 or 0.
    primary key (profile_id, device, at_s)
) strict, without rowid;

-- What a profile says should be changed.
create table diagnosis (
    profile_id integer not null references profile (id) on delete cascade, -- Profile.
    position integer not null,          -- Rank by predicted gain, from 0.
    rule text not null,                 -- What was found, such as `data_bound`.
    evidence text not null,             -- The numbers that say so.
    change text not null,               -- What would help.
    metric text not null,               -- What it would change: `throughput` (a relative gain) or `peak_memory` (bytes saved).
    predicted_gain real,                -- Gain that is predicted; null where there is no figure.
    predicted_by text,                  -- `model` (bytes and FLOPs counted, machine measured) or `shares` (parts of the measured step).
    measured_gain real,                 -- Gain that running the change gave; null where it was not run.
    outcome text,                       -- What became of running it where that gave no figure.
    primary key (profile_id, position)
) strict, without rowid;

-- Attempts at a trial whose process was lost: killed, hung, or gone with its machine. A trial that loses too many is set aside.

-- Lost attempts, in the order in which they were lost.
create table lost_attempt (
    id integer primary key,             -- Identity; later ones have larger ones.
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    attempt integer not null check (attempt >= 1), -- Which attempt it was.
    phase text check (phase in ('load', 'profile', 'train', 'evaluate')), -- Phase it was in.
    message text not null,              -- What is known of the process's end.
    wall_s real,                        -- Wall-clock seconds of the attempt.
    lost_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) -- When (UTC, ISO 8601).
) strict;

-- A trial's losses are counted whenever it loses another attempt.
create index lost_attempt_trial on lost_attempt (trial_id);

-- Lost attempts by study and trial.
create view trial_lost_attempt as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    lost_attempt.attempt as attempt,    -- Which attempt it was.
    lost_attempt.phase as phase,        -- Phase it was in.
    lost_attempt.message as message,    -- What is known of the process's end.
    lost_attempt.wall_s as wall_s,      -- Wall-clock seconds of the attempt.
    lost_attempt.lost_at as lost_at     -- When (UTC, ISO 8601).
from lost_attempt
join trial on trial.id = lost_attempt.trial_id
join study on study.id = trial.study_id
order by lost_attempt.id;

-- What a study stands on: earlier studies, predicted memory, the files that it read, and what people would have used without it.

-- Trials of earlier studies that the sampler of a study knows.
create table warm_start (
    study_id integer not null references study (id) on delete cascade, -- Study that started from them.
    source text not null,               -- Name of the earlier study; it may have been deleted since.
    trials integer not null check (trials >= 0), -- How many of its first trials were taken.
    primary key (study_id, source)
) strict, without rowid;

-- Predicted bytes of a trial's peak memory by part.
create table prediction_part (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    part text not null,                 -- Part, such as `base_weights`, `saved_activations` or `optimizer_state`.
    bytes integer not null check (bytes >= 0), -- Bytes at the highest moment of a step.
    primary key (trial_id, part)
) strict, without rowid;

-- Files that the trials of a study read.
create table study_input (
    study_id integer not null references study (id) on delete cascade, -- Study.
    role text not null,                 -- What it is: `config`, `weights`, `tokenizer`, `chat template`, `training data` or `held-out data`.
    position integer not null check (position >= 0), -- Number among the files of that role, from 0.
    path text not null,                 -- Where it lay. Another place with the same content is the same input.
    fingerprint text not null,          -- SHA-256 of the content in hexadecimal; of weights that of their header, length and sampled blocks.
    primary key (study_id, role, position)
) strict, without rowid;

-- What people would have used without a search, as a trial.
create table baseline (
    study_id integer primary key references study (id) on delete cascade, -- Study.
    trial integer not null              -- Number of the trial.
) strict;

-- Measurements that something else on the machine slowed down: what was measured again, and ceilings that are not to be trusted.

-- Every measurement of a trial whose profile phase ran more than once; `metric` has what counts.
create table measurement (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    attempt integer not null check (attempt >= 0), -- 0 for the first measurement, then the repeats in order.
    name text not null,                 -- Name of the metric.
    value real not null check (value between -1.7976931348623157e308 and 1.7976931348623157e308), -- Value, in the metric's unit.
    primary key (trial_id, attempt, name)
) strict, without rowid;

-- Measured ceilings of a machine; one row for each build of the program and number of threads.
-- Those of a busy moment are kept for want of better ones, and measured again by the next program that reads them.
create table ceiling (
    machine_id integer not null references machine (id) on delete cascade, -- Machine that was measured.
    build text not null,                -- Version and kind of build of the program that measured.
    threads integer not null,           -- Threads that computed.
    measured_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When (UTC, ISO 8601).
    memory_bytes_per_s real not null,   -- Bytes a second that copying large memory reads and writes.
    wake_s real not null,               -- Seconds to wake all threads for an op that does nothing.
    grids text not null check (json_valid(grids)), -- JSON of all that was measured: times of the engine's ops by dtype and size.
    disturbed real not null default 0 check (disturbed between 0 and 1), -- Share of the speed that may have been lost to other programs; 0 where it was quiet.
    primary key (machine_id, build, threads)
) strict;

-- Every measurement of trials that were measured again.
create view trial_measurement as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    measurement.attempt as attempt,     -- 0 for the first measurement, then the repeats in order.
    measurement.name as metric,         -- Name of the metric.
    measurement.value as value          -- Value, in the metric's unit.
from measurement
join trial on trial.id = measurement.trial_id
join study on study.id = trial.study_id;

-- Trials whose throughput was measured while something else slowed the machine down, and not in peace since.
create view disturbed_trial as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    mark.value as lost,                 -- Share of the throughput that may have been lost, in (0, 1).
    measured.value as throughput,       -- Measured tokens a second.
    cast(measured.value / (1 - mark.value) as real) as at_most -- What the setting may reach in peace.
from metric as mark
join trial on trial.id = mark.trial_id
join study on study.id = trial.study_id
left join metric as measured on measured.trial_id = mark.trial_id and measured.name = 'throughput'
where mark.name = 'disturbed' and mark.value > 0 and mark.value < 1;

-- One value of a metric everywhere: what repeats of a trial say goes before what it measured once, in the front as in every
-- command. Trials that only measured the cost of a training's variant are told apart from trainings.

-- What counts of each trial: the mean of its repeats (the highest for `peak_memory`) where there are two or more, else what
-- it measured. The first measurements alone are in `trial_metric`.
create view counted_metric as
select
    metric.trial_id as trial_id,        -- Trial.
    metric.name as name,                -- Name of the metric.
    coalesce((select c.value from confirmation as c where c.trial_id = metric.trial_id and c.name = metric.name and c.repeats > 1), metric.value) as value -- Value, in the metric's unit.
from metric;

-- Trials that took their loss over from a training, and measured a cost at most.
create view variant as
select
    inheritance.trial_id as trial_id,   -- Trial.
    inheritance.source_id as source_id  -- Training that measured its loss.
from inheritance
where inheritance.part = 'loss'
union all
select metric_inheritance.trial_id, metric_inheritance.source_id
from metric_inheritance
where metric_inheritance.metric = 'loss';

-- One row a trial: outcome, main settings and the three usual objectives, as they count.
create view trial_summary as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    trial.state as state,               -- `waiting`, `running`, `complete`, `pruned`, `failed` or `skipped`.
    trial.reason as reason,             -- Why, for the last three: `out_of_memory`, `diverged`, ..., a rule, or a text.
    trial.rank as rank,                 -- Rank r of the adapter; null in full fine-tuning.
    trial.alpha as alpha,               -- Numerator of the scaling.
    trial.dropout as dropout,           -- Adapter dropout, in [0, 1).
    trial.target_modules as target_modules, -- Adapted modules, separated by commas, or a preset's name.
    trial.micro_batch as micro_batch,   -- Rows that go through the model at once.
    trial.gradient_accumulation as gradient_accumulation, -- Micro-batches in a step.
    trial.sequence_length as sequence_length, -- Longest row, in tokens.
    trial.packing as packing,           -- Whether rows hold several documents: 1 or 0.
    trial.precision as precision,       -- Storage of the base weights.
    trial.gradient_checkpointing as gradient_checkpointing, -- Which activations are recomputed.
    trial.optimizer as optimizer,       -- Update rule.
    trial.learning_rate as learning_rate, -- Peak learning rate.
    trial.schedule as schedule,         -- Course of the learning rate.
    trial.warmup as warmup,             -- Warm-up: steps (1 or more) or fraction of all steps.
    trial.weight_decay as weight_decay, -- Decoupled weight decay.
    trial.rslora as rslora,             -- Whether the scaling is rank-stabilised: 1 or 0.
    trial.dora as dora,                 -- Whether the adapter is weight-decomposed: 1 or 0.
    (select value from counted_metric where trial_id = trial.id and name = 'throughput') as throughput, -- Trained tokens per second, padding not counted.
    (select value from counted_metric where trial_id = trial.id and name = 'peak_memory') as peak_memory, -- Highest device bytes in use.
    (select value from counted_metric where trial_id = trial.id and name = 'loss') as loss, -- Held-out loss, in nats per target token.
    trial.wall_s as wall_s,             -- Wall-clock seconds of the trial.
    cast(trial.id in (select trial_id from variant) as integer) as variant -- 1 where it took its loss over and measured a cost at most, else 0.
from trial
join study on study.id = trial.study_id;

-- Complete trials that keep their study's constraints: those that may be on the front.
create view feasible_trial as
select
    trial.study_id as study_id,         -- Study.
    trial.id as trial_id                -- Trial.
from trial
where trial.state = 'complete'
  and not exists (
      select 1
      from study_constraint as c
      where c.study_id = trial.study_id
        and not coalesce(
            (
                select case c.bound when 'at_most' then m.value <= c."limit" else m.value >= c."limit" end
                from counted_metric as m
                where m.trial_id = trial.id and m.name = c.metric
            ),
            0
        )
  );

-- The rows of `trial_summary` that no other feasible trial of their study dominates (at least as good in every objective
-- of the study and better in one). Trials that lack an objective take no part; equal trials are all kept.
create view pareto_front as
-- The definition is `front` below with `point` in place of `candidate`; the rest only makes it quick, because 10,000
-- trials are up to a hundred million pairs. Nothing that the shortcuts drop could be on the front or decide who is.
with
-- The objectives as columns, all to be minimised; those that the study does not have are 0 for everyone.
point as materialized (
    select
        f.study_id,
        f.trial_id,
        coalesce(max(case o.position when 0 then case o.direction when 'maximize' then -m.value else m.value end end), 0.0) as v0,
        coalesce(max(case o.position when 1 then case o.direction when 'maximize' then -m.value else m.value end end), 0.0) as v1,
        coalesce(max(case o.position when 2 then case o.direction when 'maximize' then -m.value else m.value end end), 0.0) as v2,
        coalesce(max(case o.position when 3 then case o.direction when 'maximize' then -m.value else m.value end end), 0.0) as v3,
        coalesce(max(case o.position when 4 then case o.direction when 'maximize' then -m.value else m.value end end), 0.0) as v4,
        coalesce(max(case o.position when 5 then case o.direction when 'maximize' then -m.value else m.value end end), 0.0) as v5
    from feasible_trial as f
    join study_objective as o on o.study_id = f.study_id
    join counted_metric as m on m.trial_id = f.trial_id and m.name = o.metric
    group by f.trial_id
    having count(*) = (select count(*) from study_objective where study_id = f.study_id)
),
-- Lowest value and one over half the range of each objective. Halves, so that a range of nearly all numbers is finite.
span as materialized (
    select
        study_id,
        min(v0) as low0, 1 / nullif(max(v0) / 2 - min(v0) / 2, 0) as per0,
        min(v1) as low1, 1 / nullif(max(v1) / 2 - min(v1) / 2, 0) as per1,
        min(v2) as low2, 1 / nullif(max(v2) / 2 - min(v2) / 2, 0) as per2,
        min(v3) as low3, 1 / nullif(max(v3) / 2 - min(v3) / 2, 0) as per3,
        min(v4) as low4, 1 / nullif(max(v4) / 2 - min(v4) / 2, 0) as per4,
        min(v5) as low5, 1 / nullif(max(v5) / 2 - min(v5) / 2, 0) as per5
    from point
    group by study_id
),
-- Objectives scaled to [0, 1], where they are constant to 0. Rounding keeps their order, and so that of their sums.
scaled as materialized (
    select
        point.*,
        coalesce((v0 / 2 - low0 / 2) * per0, 0.0) as u0,
        coalesce((v1 / 2 - low1 / 2) * per1, 0.0) as u1,
        coalesce((v2 / 2 - low2 / 2) * per2, 0.0) as u2,
        coalesce((v3 / 2 - low3 / 2) * per3, 0.0) + coalesce((v4 / 2 - low4 / 2) * per4, 0.0)
            + coalesce((v5 / 2 - low5 / 2) * per5, 0.0) as u_rest
    from point
    join span using (study_id)
),
-- Each point's cell in a grid of ten by ten by ten over the first three objectives, and its sum of scaled objectives:
-- who dominates a point has a sum at most as large, which is one comparison instead of six.
placed as materialized (
    select
        study_id, trial_id, v0, v1, v2, v3, v4, v5,
        u0 + u1 + u2 + u_rest as total,
        cast(u0 * 10 as integer) as c0,
        cast(u1 * 10 as integer) as c1,
        cast(u2 * 10 as integer) as c2
    from scaled
),
-- The point with the smallest sum of each cell (SQLite takes the other columns from the row that has the minimum)...
best_of_cell as materialized (
    select study_id, v0, v1, v2, v3, v4, v5, min(total) as total
    from placed
    group by study_id, c0, c1, c2
    order by total
),
-- ... if no other cell's dominates it: a few dozen points that together dominate nearly all the others.
strong as materialized (
    select *
    from best_of_cell as a
    where not exists (
        select 1
        from best_of_cell as b
        where b.study_id = a.study_id
          and b.total <= a.total
          and b.v0 <= a.v0 and b.v1 <= a.v1 and b.v2 <= a.v2 and b.v3 <= a.v3 and b.v4 <= a.v4 and b.v5 <= a.v5
          and (b.v0 < a.v0 or b.v1 < a.v1 or b.v2 < a.v2 or b.v3 < a.v3 or b.v4 < a.v4 or b.v5 < a.v5)
    )
    order by total
),
candidate as materialized (
    select *
    from placed as a
    where not exists (
        select 1
        from strong as b
        where b.study_id = a.study_id
          and b.total <= a.total
          and b.v0 <= a.v0 and b.v1 <= a.v1 and b.v2 <= a.v2 and b.v3 <= a.v3 and b.v4 <= a.v4 and b.v5 <= a.v5
          and (b.v0 < a.v0 or b.v1 < a.v1 or b.v2 < a.v2 or b.v3 < a.v3 or b.v4 < a.v4 or b.v5 < a.v5)
    )
),
-- What is left is compared column of cells by column of cells: one that is somewhere worse than a point at its best
-- holds nobody who dominates the point.
cell as materialized (
    select
        study_id, c0, c1,
        min(v0) as v0, min(v1) as v1, min(v2) as v2, min(v3) as v3, min(v4) as v4, min(v5) as v5,
        min(total) as total
    from candidate
    group by study_id, c0, c1
    order by min(total)
),
front as materialized (
    select a.study_id, a.trial_id
    from candidate as a
    where not exists (
        select 1
        from cell
        cross join candidate as b
        where cell.study_id = a.study_id
          and cell.total <= a.total
          and cell.v0 <= a.v0 and cell.v1 <= a.v1 and cell.v2 <= a.v2
          and cell.v3 <= a.v3 and cell.v4 <= a.v4 and cell.v5 <= a.v5
          and b.study_id = cell.study_id and b.c0 = cell.c0 and b.c1 = cell.c1
          and b.total <= a.total
          and b.v0 <= a.v0 and b.v1 <= a.v1 and b.v2 <= a.v2 and b.v3 <= a.v3 and b.v4 <= a.v4 and b.v5 <= a.v5
          and (b.v0 < a.v0 or b.v1 < a.v1 or b.v2 < a.v2 or b.v3 < a.v3 or b.v4 < a.v4 or b.v5 < a.v5)
    )
)
select trial_summary.*
from front
-- `cross join` keeps this order: with a filter on `study`, the planner would go through the front once for each trial.
cross join trial on trial.id = front.trial_id
cross join study on study.id = front.study_id
cross join trial_summary on trial_summary.study = study.name and trial_summary.trial = trial.number;

-- The best feasible trial of each study in each of its objectives; the first of equals.
create view best_by_objective as
select
    study,                              -- Name of the study.
    metric,                             -- Objective.
    direction,                          -- `minimize` or `maximize`.
    trial,                              -- Number of the best trial.
    value                               -- Its value, in the metric's unit.
from (
    select
        study.name as study,
        o.metric as metric,
        o.direction as direction,
        o.position as position,
        trial.number as trial,
        m.value as value,
        row_number() over (
            partition by study.id, o.position
            order by case o.direction when 'maximize' then -m.value else m.value end, trial.number
        ) as place
    from feasible_trial as f
    join study on study.id = f.study_id
    join trial on trial.id = f.trial_id
    join study_objective as o on o.study_id = f.study_id
    join counted_metric as m on m.trial_id = f.trial_id and m.name = o.metric
)
where place = 1
order by study, position;

-- One row a study: what it asked and how far it is.
create view study_summary as
select
    study.name as study,                -- Name of the study.
    model.source as model,              -- Base model; null where not recorded.
    data_set.source as data_set,        -- Training data; null where not recorded.
    study.sampler as sampler,           -- Sampler that proposes the params.
    cast((select group_concat(metric, ',') from (select metric from study_objective where study_id = study.id order by position)) as text) as objectives, -- Objectives, separated by commas.
    cast((select count(*) from trial where study_id = study.id) as integer) as trials, -- Trials in any state.
    cast((select count(*) from trial where study_id = study.id and id in (select trial_id from variant)) as integer) as variants, -- Of these, those that took their loss over and measured a cost at most.
    cast((select count(*) from trial where study_id = study.id and state = 'complete') as integer) as complete, -- Trials that ran to their end.
    cast((select count(*) from trial where study_id = study.id and state = 'pruned') as integer) as pruned, -- Trials stopped early.
    cast((select count(*) from trial where study_id = study.id and state = 'failed') as integer) as failed, -- Trials that failed.
    cast((select count(*) from trial where study_id = study.id and state = 'skipped') as integer) as skipped, -- Trials that were not run.
    cast((select count(*) from trial where study_id = study.id and state in ('waiting', 'running')) as integer) as unfinished, -- Trials running, or to be repeated.
    cast((select total(wall_s) from trial where study_id = study.id) as real) as wall_s, -- Wall-clock seconds of all trials.
    study.created_at as created_at,     -- When the study began (UTC, ISO 8601).
    study.resumed_at as resumed_at      -- When it was last resumed (UTC, ISO 8601).
from study
left join model on model.id = study.model_id
left join data_set on data_set.id = study.data_set_id;

-- How far a search is, which its trials alone do not tell: the budget may come from the command line, and what follows the trials leaves none.

-- What the running or the last search of a study may spend, and what it does now.
create table search_state (
    study_id integer primary key references study (id) on delete cascade, -- Study.
    budget_trials integer check (budget_trials >= 0), -- Trials that the study may have, variants not counted; null where time alone limits it.
    budget_s real check (budget_s >= 0 and budget_s <= 1.7976931348623157e308), -- Seconds that its trials may take together; null where their number alone limits it.
    workers integer not null check (workers >= 1), -- Trials that run side by side.
    stage text not null check (stage in ('trials', 'measuring_again', 'confirming', 'ended')), -- What the search does; a search whose process was lost keeps its last stage.
    stage_since text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) -- Since when (UTC, ISO 8601).
) strict;

-- Metrics by trial and step: what the native engine evaluated on its way, or what a program of the user's reported.
create view trial_report as
select
    study.name as study,                -- Name of the study.
    trial.number as trial,              -- Number of the trial within its study, from 0.
    curve.step as step,                 -- Steps of training before it.
    curve.name as metric,               -- Name of the metric.
    curve.value as value                -- Value, in the metric's unit.
from (
    select trial_id, step, name, value from report
    union all
    select trial_id, step, 'loss', loss from evaluation where loss is not null
    union all
    select trial_id, step, 'token_accuracy', accuracy from evaluation where accuracy is not null
) as curve
join trial on trial.id = curve.trial_id
join study on study.id = trial.study_id;

-- How trials were computed: the same setting is faster with the engine's own kernels than with plain tensor ops, so that one must
-- not take over what the other measured.

-- How the engine computed a trial. Trials of a command, and those that were never started, have no row.
create table trial_kernels (
    trial_id integer primary key references trial (id) on delete cascade, -- Trial.
    kernels text not null check (kernels in ('fused', 'tiled', 'hopper', 'reference', 'graphs')), -- Form of the ops (`--kernels`): `fused` is `auto`, `reference` plain tensor ops, the others own kernels.
    attention text check (attention in ('hopper', 'tiled', 'plain')), -- Fastest kernels that attention ran in on a GPU; null on the CPU, in plain tensor ops, and where nothing had to run.
    longer_sums integer not null default 0 check (longer_sums in (0, 1)), -- 1 where products of quantized weights took those of adapters along: on a GPU, for shapes where that was timed to be faster.
    instead_of text check (instead_of in ('fused', 'tiled', 'hopper', 'reference', 'graphs')) -- Form that was asked for, where a kernel of it failed and this safer one took its place.
) strict;

-- How fast a model answers: alone, with one adapter or several, and from text to text.

-- How fast a model answers: one row for each form of the model, batch size, prompt length and rank.
create table infer_bench (
    id integer primary key,             -- Identity.
    bench integer not null,             -- Rows of one call of `infer-bench` have the same number.
    created_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When it was measured (UTC, ISO 8601).
    machine_id integer references machine (id), -- Machine that ran it.
    model text not null,                -- Base model.
    precision text not null,            -- Storage of its weights.
    form text not null check (form in ('base', 'adapter', 'merged', 'together')), -- `base`, `adapter` (beside the base weights), `merged` (folded into them) or `together` (several adapters beside the base weights).
    rank integer,                       -- Rank of the adapter, of `together` the sum of ranks; null for `base`.
    adapters integer not null default 0, -- Adapters that the sequences have in turn; 0 but for `together`.
    batch integer not null,             -- Sequences that are answered at once.
    prompt_tokens integer not null,     -- Length of each prompt.
    new_tokens integer not null,        -- Tokens that were generated for each.
    first_token_p50_s real not null,    -- Seconds until the first token: the median over repetitions,
    first_token_p95_s real not null,    -- its 95th percentile,
    first_token_p99_s real not null,    -- and its 99th.
    token_p50_s real not null,          -- Seconds from one token to the next: the median,
    token_p95_s real not null,          -- its 95th percentile,
    token_p99_s real not null,          -- and its 99th.
    prefill_tokens_per_s real not null, -- Prompt tokens per second while prompts are read.
    decode_tokens_per_s real not null,  -- Generated tokens per second of all sequences together.
    peak_memory_bytes integer not null, -- Highest device bytes in use, the process's own left out.
    cache_bytes integer not null        -- Of those, keys and values of the tokens seen.
) strict;

-- What the last calls measured is asked for by model.
create index infer_bench_model on infer_bench (model, bench);

-- How fast requests are answered from text to text: one row for each form of the model, batch size and rank.
create table infer_requests (
    id integer primary key,             -- Identity.
    bench integer not null,             -- Call of `infer-bench`, as in `infer_bench`.
    created_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When it was measured (UTC, ISO 8601).
    machine_id integer references machine (id), -- Machine that ran it.
    model text not null,                -- Base model.
    precision text not null,            -- Storage of its weights.
    form text not null check (form in ('base', 'adapter', 'merged', 'together')), -- As in `infer_bench`.
    rank integer,                       -- As in `infer_bench`.
    adapters integer not null default 0, -- As in `infer_bench`.
    batch integer not null,             -- Requests that are answered at once.
    requests integer not null,          -- Requests that were answered.
    prompt_tokens real not null,        -- Mean tokens of a prompt.
    new_tokens real not null,           -- Mean tokens of an answer.
    first_token_p50_s real not null,    -- Seconds from the texts of a batch to the first token of each answer: the median over batches,
    first_token_p95_s real not null,    -- its 95th percentile,
    first_token_p99_s real not null,    -- and its 99th.
    request_p50_s real not null,        -- Seconds from the texts of a batch to the text of an answer: the median over requests,
    request_p95_s real not null,        -- its 95th percentile,
    request_p99_s real not null,        -- and its 99th.
    tokens_per_s real not null,         -- Tokens of all answers over the time of all batches.
    requests_per_s real not null,       -- Answers over the time of all batches.
    text_share real not null,           -- Share of that time that tokenizing and decoding took.
    peak_memory_bytes integer not null  -- Highest device bytes in use, the process's own left out.
) strict;

-- What the last calls measured is asked for by model.
create index infer_requests_model on infer_requests (model, bench);

-- Trainings whose precision changes on their way (`precision_schedule`) say at which steps it was decided, on what, and to what end.

-- What trials decided on their precision while they trained.
create table precision_decision (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    step integer not null, -- Step of the training phase at whose end it was decided.
    precision text not null, -- What the steps from the next one on compute in.
    cause text not null check (cause in ('schedule', 'noise', 'signal', 'undecided', 'overflows')), -- Why: the schedule names the step, gradients are mostly noise or mostly signal, neither is certain (as before), or several overflowed.
    noise_scale real, -- Noise scale of the gradients in target tokens; null where it was not asked for or has no end.
    step_targets real not null, -- Mean target tokens of the steps that decided.
    overflows integer not null, -- Steps among them whose gradients overflowed.
    primary key (trial_id, step)
) strict, without rowid;

-- What searches found about their data and ranges, and what one that goes on has to know.

-- What is learnt of data, as the last search on them saw it.
create table data_learnt (
    data_set_id integer primary key references data_set (id) on delete cascade, -- Data.
    summary text not null -- Rows, the share of their tokens that is learnt, and whether answers end in a stop token.
) strict;

-- Ranges that searches widened by themselves, in the order in which they did: of each parameter the last one is searched now.
create table range_widening (
    study_id integer not null references study (id) on delete cascade, -- Study.
    position integer not null,          -- Counts from 0.
    parameter text not null,            -- Parameter whose range it is.
    low_before real not null,           -- Lower end before.
    high_before real not null check (high_before >= low_before), -- Upper end before.
    low real not null check (low <= low_before), -- Lower end from then on.
    high real not null check (high >= high_before), -- Upper end from then on.
    best_trial integer not null,        -- Number of the trial with the least loss by then, which sat on the edge.
    trainings integer not null,         -- Trainings that it was the best of.
    widened_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When (UTC, ISO 8601).
    primary key (study_id, position)
) strict, without rowid;

-- Losses of the held-out rows of the best trainings so far, which the last evaluation of the next trial is compared with. The best of each length and kind of rows is kept.
create table held_out_losses (
    trial_id integer primary key references trial (id) on delete cascade, -- Trial that trained it.
    target_tokens text not null, -- JSON array: target tokens of each held-out row, in the order of the rows.
    losses text not null -- JSON array: cross-entropy summed over the target tokens of each row, in nats.
) strict;
