SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.api_keys (
    id character varying(16) NOT NULL,
    user_id integer NOT NULL,
    secret_sha256 bytea NOT NULL,
    created_at double precision NOT NULL,
    revoked_at double precision
);
CREATE TABLE public.artifacts (
    experiment_id character varying(32) NOT NULL,
    file character varying(200) NOT NULL,
    seq integer NOT NULL,
    media_type character varying(100) NOT NULL,
    sha256 character varying(64) NOT NULL,
    attempt integer NOT NULL
);
CREATE TABLE public.blocks (
    series_id integer NOT NULL,
    first_seq integer NOT NULL,
    last_seq integer NOT NULL,
    count integer NOT NULL,
    x bytea NOT NULL,
    value bytea NOT NULL,
    std_err bytea NOT NULL,
    n bytea NOT NULL,
    reason bytea NOT NULL,
    reasons json NOT NULL,
    seq bytea
);
CREATE TABLE public.checkpoints (
    experiment_id character varying(32) NOT NULL,
    after_seq integer NOT NULL,
    attempt integer NOT NULL,
    file character varying(500) NOT NULL,
    sha256 character varying(64) NOT NULL,
    created_at double precision NOT NULL
);
CREATE TABLE public.datasets (
    id character varying(32) NOT NULL,
    owner_id integer NOT NULL,
    name character varying(200) NOT NULL,
    format character varying(16) NOT NULL,
    bytes bigint NOT NULL,
    sha256 character varying(64) NOT NULL,
    n integer NOT NULL,
    dim integer,
    arrays json,
    columns json,
    created_at double precision NOT NULL,
    copy integer DEFAULT 0 NOT NULL
);
CREATE TABLE public.events (
    id integer NOT NULL,
    experiment_id character varying(32) NOT NULL,
    at double precision NOT NULL,
    kind character varying(16) NOT NULL,
    data json NOT NULL,
    seq integer
);
CREATE SEQUENCE public.events_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.events_id_seq OWNED BY public.events.id;
CREATE TABLE public.experiments (
    id character varying(32) NOT NULL,
    owner_id integer NOT NULL,
    name character varying(200),
    tags json NOT NULL,
    note text,
    priority integer NOT NULL,
    spec json NOT NULL,
    status character varying(16) NOT NULL,
    desired_state character varying(16) NOT NULL,
    dispatch_no integer NOT NULL,
    attempt integer NOT NULL,
    lost integer NOT NULL,
    worker character varying(200),
    lease_expires_at double precision,
    created_at double precision NOT NULL,
    dispatched_at double precision,
    started_at double precision,
    finished_at double precision,
    last_seq integer NOT NULL,
    progress_done bigint,
    progress_total bigint,
    progress_unit character varying(32),
    failure_kind character varying(16),
    failure_message text,
    retry_of character varying(32),
    idempotency_key character varying(200),
    submission_sha256 character varying(64),
    queue character varying(16)
);
CREATE TABLE public.metrics (
    experiment_id character varying(32) NOT NULL,
    name character varying(64) NOT NULL,
    labels character varying(1000) NOT NULL,
    seq integer NOT NULL,
    value double precision,
    std_err double precision,
    reason character varying(500)
);
CREATE TABLE public.series (
    id integer NOT NULL,
    experiment_id character varying(32) NOT NULL,
    name character varying(64) NOT NULL,
    labels character varying(1000) NOT NULL
);
CREATE SEQUENCE public.series_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.series_id_seq OWNED BY public.series.id;
CREATE TABLE public.users (
    id integer NOT NULL,
    name character varying(100) NOT NULL,
    created_at double precision NOT NULL
);
CREATE SEQUENCE public.users_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.users_id_seq OWNED BY public.users.id;
CREATE TABLE public.workers (
    id character varying(200) NOT NULL,
    host character varying(200) NOT NULL,
    queue character varying(16) NOT NULL,
    memory_free bigint NOT NULL,
    gpu character varying(200),
    gpu_driver character varying(50),
    gpu_memory_total bigint,
    gpu_memory_free bigint,
    started_at double precision NOT NULL,
    heartbeat_at double precision NOT NULL
);
ALTER TABLE ONLY public.events ALTER COLUMN id SET DEFAULT nextval('public.events_id_seq'::regclass);
ALTER TABLE ONLY public.series ALTER COLUMN id SET DEFAULT nextval('public.series_id_seq'::regclass);
ALTER TABLE ONLY public.users ALTER COLUMN id SET DEFAULT nextval('public.users_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0008');
INSERT INTO public.api_keys VALUES ('00394deccfc624d7', 1, '\xcbcf3b575c00176a51b3ca6f57a5be8c83f9965027fd7323fbc021143293207c', 1795416920.535895, NULL);
INSERT INTO public.blocks VALUES (1, 2, 8, 6, '\x000000000000f03f00000000000000400000000000000840000000000000104000000000000014400000000000001840', '\x20cb438a608defbfda2554f83b09f0bff4ec87834702f0bf4abd9c448d84eebf67e247530fdcf5bfc0bada4b68d0f8bf', '\xda68e25919c1c33f1d2acea90333b63f8d336eb882d0bc3fec11b6b28966a93ff6f296adc52bb23f0000000000000000', '\x000000000000104000000000000010400000000000001040000000000000104000000000000010400000000000001040', '\x000000000000', '[]', '\x020000000300000004000000050000000600000008000000');
INSERT INTO public.blocks VALUES (2, 3, 6, 2, '\x000000000000f03f0000000000000040', '\x7711b2a41cede3bf75c3206d71f8e3bf', '\x2ad53da65bb9583fec66d5ed616b513f', '\x000000000070a740000000000070a740', '\x0000', '[]', '\x0300000006000000');
INSERT INTO public.blocks VALUES (2, 8, 14, 3, '\x000000000000084000000000000010400000000000001440', '\x6682c2bbbfe9e3bf7c5422eba7f6e3bf758fa5ae66f7e3bf', '\xaaacf0ea253e4c3f3342cea9b613483f8b4518ca96d8453f', '\x000000000070a740000000000070a740000000000070a740', '\x000000', '[]', '\x080000000b0000000e000000');
INSERT INTO public.blocks VALUES (2, 16, 19, 2, '\x00000000000018400000000000001c40', '\x460f35ff88fde3bf98818bcc4200e4bf', '\x7deb215ba859433f8a1f6f9d8f5b413f', '\x000000000070a740000000000070a740', '\x0000', '[]', '\x1000000013000000');
INSERT INTO public.blocks VALUES (2, 22, 27, 3, '\x000000000000204000000000000022400000000000002440', '\x6930e3dfc6fee3bfa2bfccee0301e4bf2fc78dfb4401e4bf', '\x99024c5cae86403f10975fce2d983f3f92558d030a123c3f', '\x000000000070a740000000000070a740000000000070a740', '\x000000', '[]', '\x16000000180000001b000000');
INSERT INTO public.blocks VALUES (2, 30, 32, 2, '\x00000000000026400000000000002840', '\xdd12d1aebb0be4bfebfe960b730ee4bf', '\x6368fa4c21bf3b3f66254ae4d4793a3f', '\x000000000070a740000000000070a740', '\x0000', '[]', '\x1e00000020000000');
INSERT INTO public.blocks VALUES (2, 35, 35, 1, '\x0000000000002a40', '\x03c8b2286c0ee4bf', '\xd9e334106b23393f', '\x000000000070a740', '\x00', '[]', '\x23000000');
INSERT INTO public.blocks VALUES (2, 38, 40, 2, '\x0000000000002c400000000000002e40', '\xc30d5da55414e4bf3c9e70608c1ce4bf', '\xa424472f2b4e383f78315ccdddda363f', '\x000000000070a740000000000070a740', '\x0000', '[]', '\x2600000028000000');
INSERT INTO public.blocks VALUES (2, 43, 46, 2, '\x00000000000030400000000000003140', '\xd0f9e532e91be4bf01f785901924e4bf', '\x2640ab703788363ff0de16ac046b353f', '\x000000000070a740000000000070a740', '\x0000', '[]', '\x2b0000002e000000');
INSERT INTO public.blocks VALUES (2, 48, 48, 1, '\x0000000000003240', '\xcae87e4a9d28e4bf', '\x924c9470760a353f', '\x000000000070a740', '\x00', '[]', '\x30000000');
INSERT INTO public.blocks VALUES (2, 51, 54, 2, '\x00000000000033400000000000003440', '\x2781cf773730e4bf3b7a2ec17933e4bf', '\x57a0525e5bc9343f650ed0ea9b6c343f', '\x000000000070a740000000000070a740', '\x0000', '[]', '\x3300000036000000');
INSERT INTO public.blocks VALUES (2, 56, 59, 2, '\x00000000000035400000000000003640', '\xeeadf8525836e4bfb75d576a583ee4bf', '\xc4839cc0aa7a333f2fccc76f48b0323f', '\x000000000070a740000000000070a740', '\x0000', '[]', '\x380000003b000000');
INSERT INTO public.blocks VALUES (2, 62, 62, 1, '\x0000000000003740', '\xbffee3db7541e4bf', '\x3913bba64993323f', '\x000000000070a740', '\x00', '[]', '\x3e000000');
INSERT INTO public.blocks VALUES (2, 64, 67, 2, '\x00000000000038400000000000003940', '\xd71618fe734ae4bf9c7bd1626a55e4bf', '\xf1d87c48074c323f3365881c0fea313f', '\x000000000070a740000000000070a740', '\x0000', '[]', '\x4000000043000000');
INSERT INTO public.blocks VALUES (2, 70, 72, 2, '\x0000000000003a400000000000003b40', '\xe51835752a5ce4bffff22a601f62e4bf', '\xb203398ccf3e313fcaa6adc03bdf313f', '\x000000000070a740000000000070a740', '\x0000', '[]', '\x4600000048000000');
INSERT INTO public.blocks VALUES (2, 75, 75, 1, '\x0000000000003c40', '\x16135bcf836ae4bf', '\x2132e4f3cea7313f', '\x000000000070a740', '\x00', '[]', '\x4b000000');
INSERT INTO public.blocks VALUES (2, 78, 80, 2, '\x0000000000003d400000000000003e40', '\x80b5a41f4e72e4bfb248e36cf07de4bf', '\xdb42ffd40abb313f8aee887f6888313f', '\x000000000070a740000000000070a740', '\x0000', '[]', '\x4e00000050000000');
INSERT INTO public.checkpoints VALUES ('01a207305857727480c17a9b95dcfb6f', 62, 1, '1/000000000062-9bc0a034a89210cf.safetensors', '9bc0a034a89210cf95a33c4d4e44cdb296b7f007941b0d12008caf9e3b0223dc', 1795416941.740229);
INSERT INTO public.checkpoints VALUES ('01a207305857727480c17a9b95dcfb6f', 75, 1, '1/000000000075-b41c24a683c3d290.safetensors', 'b41c24a683c3d2908d159772df0905b9921d63d13b291ce35d54a4297de694e8', 1795416942.296076);
INSERT INTO public.datasets VALUES ('01a2073039c172ccb18a3e4a10fb5c95', 1, 'rows.csv', 'csv', 48, '486c681cedacbca6fcb70ec8ed2fceef8381a232bb847a801e494924ad1d8705', 4, 3, 'null', '["f0", "f1", "f2"]', 1795416935.910644, 0);
INSERT INTO public.events VALUES (1, '01a207304ede764eb1c0cd35e33f5d80', 1795416936.190377, 'status', '{"status": "queued"}', NULL);
INSERT INTO public.events VALUES (2, '01a207304ede764eb1c0cd35e33f5d80', 1795416936.262699, 'status', '{"status": "dispatched", "dispatch_no": 1}', NULL);
INSERT INTO public.events VALUES (3, '01a207304ede764eb1c0cd35e33f5d80', 1795416936.39769, 'status', '{"status": "running", "attempt": 1, "worker": "vm:17680"}', NULL);
INSERT INTO public.events VALUES (4, '01a207304ede764eb1c0cd35e33f5d80', 1795416937.487845, 'log', '{"level": "info", "message": "torch 2.13.0+cpu on cpu, float64, 1 threads"}', 1);
INSERT INTO public.events VALUES (5, '01a207304ede764eb1c0cd35e33f5d80', 1795416937.651815, 'status', '{"status": "succeeded", "attempt": 1}', NULL);
INSERT INTO public.events VALUES (6, '01a207305857727480c17a9b95dcfb6f', 1795416938.607099, 'status', '{"status": "queued"}', NULL);
INSERT INTO public.events VALUES (7, '01a207305857727480c17a9b95dcfb6f', 1795416938.727808, 'status', '{"status": "dispatched", "dispatch_no": 1}', NULL);
INSERT INTO public.events VALUES (8, '01a207305857727480c17a9b95dcfb6f', 1795416938.775218, 'status', '{"status": "running", "attempt": 1, "worker": "vm:17680"}', NULL);
INSERT INTO public.events VALUES (9, '01a207305857727480c17a9b95dcfb6f', 1795416939.112359, 'log', '{"level": "info", "message": "torch 2.13.0+cpu on cpu, float64, 1 threads"}', 1);
INSERT INTO public.events VALUES (10, '01a207305d697f79af744679d7be8345', 1795416939.903347, 'status', '{"status": "queued"}', NULL);
INSERT INTO public.events VALUES (11, '01a207305e597c31a5902a18a8556ce2', 1795416940.143785, 'status', '{"status": "queued"}', NULL);
INSERT INTO public.events VALUES (12, '01a207305e597c31a5902a18a8556ce2', 1795416940.395377, 'status', '{"status": "paused"}', NULL);
INSERT INTO public.experiments VALUES ('01a207305d697f79af744679d7be8345', 1, 'queued', '[]', NULL, 0, '{"model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator", "experiment": null}, "baseline": null, "data": {"n": 50, "heldout": null, "source": "ppca", "dim": 6, "latent_dim": 2, "noise_precision": 5.0, "noise": "isotropic", "seed": 3}, "train": null, "evaluate": {"masks": {"per_size": 4, "design": "independent", "schedule": "all"}, "convergence": false, "bias": false, "target_std_err": null, "max_masks": 200000, "lml": {"method": "exact"}}, "seeds": [4], "compute": {"device": "cpu", "threads": 1, "max_runtime_s": 3600, "memory_mib": null, "precision": "float64"}}', 'queued', 'run', 0, 0, 0, NULL, NULL, 1795416939.901274, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '142b4197eb0cda83ded76a0908ed71e0276b20113b5b963de25ecade03fc981a', NULL);
INSERT INTO public.experiments VALUES ('01a207305857727480c17a9b95dcfb6f', 1, 'running', '[]', NULL, 0, '{"model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator", "experiment": null}, "baseline": null, "data": {"n": 50, "heldout": null, "source": "ppca", "dim": 60, "latent_dim": 2, "noise_precision": 5.0, "noise": "isotropic", "seed": 3}, "train": null, "evaluate": {"masks": {"per_size": 3000, "design": "independent", "schedule": "all"}, "convergence": false, "bias": false, "target_std_err": null, "max_masks": 200000, "lml": {"method": "exact"}}, "seeds": [4], "compute": {"device": "cpu", "threads": 1, "max_runtime_s": 3600, "memory_mib": null, "precision": "float64"}}', 'running', 'run', 1, 1, 0, 'vm:17680', 1795416945.513705, 1795416938.603802, 1795416938.723968, 1795416938.744373, NULL, 82, 91800, 180000, 'masks', NULL, NULL, NULL, NULL, 'b14d368fd4a3db786e978d60ec167c0c554ae1d86f3747a521a7bf028b951b07', 'cpu');
INSERT INTO public.experiments VALUES ('01a207304ede764eb1c0cd35e33f5d80', 1, 'ended', '["a", "b"]', 'kept', 0, '{"model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator", "experiment": null}, "baseline": null, "data": {"n": 50, "heldout": null, "source": "ppca", "dim": 6, "latent_dim": 2, "noise_precision": 5.0, "noise": "isotropic", "seed": 3}, "train": null, "evaluate": {"masks": {"per_size": 4, "design": "independent", "schedule": "all"}, "convergence": false, "bias": false, "target_std_err": null, "max_masks": 200000, "lml": {"method": "exact"}}, "seeds": [4], "compute": {"device": "cpu", "threads": 1, "max_runtime_s": 3600, "memory_mib": null, "precision": "float64"}}', 'succeeded', 'run', 1, 1, 0, 'vm:17680', NULL, 1795416936.183674, 1795416936.260012, 1795416936.311764, 1795416937.63229, 11, 24, 24, 'masks', NULL, NULL, NULL, NULL, '5c9c93e33c221e26bb171b9615c798db09234968e329b3fb6528106462bac6a5', 'cpu');
INSERT INTO public.experiments VALUES ('01a207305e597c31a5902a18a8556ce2', 1, 'paused', '[]', NULL, 0, '{"model": {"family": "ppca", "latent_dim": 2, "noise_precision": 5.0, "init": "generator", "experiment": null}, "baseline": null, "data": {"n": 50, "heldout": null, "source": "ppca", "dim": 6, "latent_dim": 2, "noise_precision": 5.0, "noise": "isotropic", "seed": 3}, "train": null, "evaluate": {"masks": {"per_size": 4, "design": "independent", "schedule": "all"}, "convergence": false, "bias": false, "target_std_err": null, "max_masks": 200000, "lml": {"method": "exact"}}, "seeds": [4], "compute": {"device": "cpu", "threads": 1, "max_runtime_s": 3600, "memory_mib": null, "precision": "float64"}}', 'paused', 'pause', 0, 0, 0, NULL, NULL, 1795416940.136139, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '948b5292f4bc0b91c639fa4c09ec4806a7065110ab8329041c4c5c998442f596', NULL);
INSERT INTO public.metrics VALUES ('01a207304ede764eb1c0cd35e33f5d80', 'lml', '{"seed":4}', 9, -6.547817506912796, 0, NULL);
INSERT INTO public.metrics VALUES ('01a207304ede764eb1c0cd35e33f5d80', 'mpt', '{"seed":4}', 10, -6.85960579824974, 0.22694918560300692, NULL);
INSERT INTO public.metrics VALUES ('01a207304ede764eb1c0cd35e33f5d80', 'difference', '{"seed":4}', 11, -0.31178829133694386, 0.22694918560300692, NULL);
INSERT INTO public.series VALUES (1, '01a207304ede764eb1c0cd35e33f5d80', 'score', '{"seed":4}');
INSERT INTO public.series VALUES (2, '01a207305857727480c17a9b95dcfb6f', 'score', '{"seed":4}');
INSERT INTO public.users VALUES (1, 'local', 1795416920.504131);
INSERT INTO public.workers VALUES ('vm:17680', 'vm', 'cpu', 16988409856, NULL, NULL, NULL, NULL, 1795416928.656499, 1795416942.356576);
SELECT pg_catalog.setval('public.events_id_seq', 12, true);
SELECT pg_catalog.setval('public.series_id_seq', 17, true);
SELECT pg_catalog.setval('public.users_id_seq', 1, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT pk_api_keys PRIMARY KEY (id);
ALTER TABLE ONLY public.artifacts
    ADD CONSTRAINT pk_artifacts PRIMARY KEY (experiment_id, file);
ALTER TABLE ONLY public.blocks
    ADD CONSTRAINT pk_blocks PRIMARY KEY (series_id, first_seq);
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT pk_checkpoints PRIMARY KEY (experiment_id, after_seq, attempt);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT pk_datasets PRIMARY KEY (id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT pk_events PRIMARY KEY (id);
ALTER TABLE ONLY public.experiments
    ADD CONSTRAINT pk_experiments PRIMARY KEY (id);
ALTER TABLE ONLY public.metrics
    ADD CONSTRAINT pk_metrics PRIMARY KEY (experiment_id, name, labels);
ALTER TABLE ONLY public.series
    ADD CONSTRAINT pk_series PRIMARY KEY (id);
ALTER TABLE ONLY public.users
    ADD CONSTRAINT pk_users PRIMARY KEY (id);
ALTER TABLE ONLY public.workers
    ADD CONSTRAINT pk_workers PRIMARY KEY (id);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT uq_datasets_owner_id_sha256_format_copy UNIQUE (owner_id, sha256, format, copy);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT uq_events_experiment_id_seq UNIQUE (experiment_id, seq);
ALTER TABLE ONLY public.experiments
    ADD CONSTRAINT uq_experiments_owner_id_idempotency_key UNIQUE (owner_id, idempotency_key);
ALTER TABLE ONLY public.series
    ADD CONSTRAINT uq_series_experiment_id_name_labels UNIQUE (experiment_id, name, labels);
ALTER TABLE ONLY public.users
    ADD CONSTRAINT uq_users_name UNIQUE (name);
CREATE INDEX ix_api_keys_user_id ON public.api_keys USING btree (user_id);
CREATE INDEX ix_datasets_owner_id ON public.datasets USING btree (owner_id);
CREATE INDEX ix_experiments_owner_id_id ON public.experiments USING btree (owner_id, id);
CREATE INDEX ix_experiments_queue ON public.experiments USING btree (status, priority, id);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT fk_api_keys_user_id_users FOREIGN KEY (user_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.artifacts
    ADD CONSTRAINT fk_artifacts_experiment_id_experiments FOREIGN KEY (experiment_id) REFERENCES public.experiments(id);
ALTER TABLE ONLY public.blocks
    ADD CONSTRAINT fk_blocks_series_id_series FOREIGN KEY (series_id) REFERENCES public.series(id);
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT fk_checkpoints_experiment_id_experiments FOREIGN KEY (experiment_id) REFERENCES public.experiments(id);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT fk_datasets_owner_id_users FOREIGN KEY (owner_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT fk_events_experiment_id_experiments FOREIGN KEY (experiment_id) REFERENCES public.experiments(id);
ALTER TABLE ONLY public.experiments
    ADD CONSTRAINT fk_experiments_owner_id_users FOREIGN KEY (owner_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.metrics
    ADD CONSTRAINT fk_metrics_experiment_id_experiments FOREIGN KEY (experiment_id) REFERENCES public.experiments(id);
ALTER TABLE ONLY public.series
    ADD CONSTRAINT fk_series_experiment_id_experiments FOREIGN KEY (experiment_id) REFERENCES public.experiments(id);
