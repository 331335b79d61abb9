-- `infer-bench` measures several adapters of one base model too, and requests from text to text.
-- The table is made anew, with its comments, and takes over its rows.

alter table infer_bench rename to infer_bench_before;
drop index infer_bench_model;

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

insert into infer_bench (id, bench, created_at, machine_id, model, precision, form, rank, batch, prompt_tokens, new_tokens,
    first_token_p50_s, first_token_p95_s, first_token_p99_s, token_p50_s, token_p95_s, token_p99_s, prefill_tokens_per_s,
    decode_tokens_per_s, peak_memory_bytes, cache_bytes)
select id, bench, created_at, machine_id, model, precision, form, rank, batch, prompt_tokens, new_tokens,
    first_token_p50_s, first_token_p95_s, first_token_p99_s, token_p50_s, token_p95_s, token_p99_s, prefill_tokens_per_s,
    decode_tokens_per_s, peak_memory_bytes, cache_bytes from infer_bench_before;

drop table infer_bench_before;

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
