-- Settings measured in depth: where a step's time and memory went, what would help, and how fast the model answers.

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

-- How fast a model answers: one row for each form of the model, batch size, prompt length and rank.
create table infer_bench (
    id integer primary key,             -- Identity.
    bench integer not null,             -- Rows of one call of `infer-bench` have the same number.
    created_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When it was measured (UTC, ISO 8601).
    machine_id integer references machine (id), -- Machine that ran it.
    model text not null,                -- Base model.
    precision text not null,            -- Storage of its weights.
    form text not null check (form in ('base', 'adapter', 'merged')), -- `base`, `adapter` (beside the base weights) or `merged` (folded into them).
    rank integer,                       -- Rank of the adapter; null for `base`.
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
