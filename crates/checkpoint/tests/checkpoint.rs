//! Checkpoints written, read back and refused.

#![allow(clippy::unwrap_used)] // Of helpers too, not of tests only.

use half::{bf16, f16};
use periplus_checkpoint::config::{Config, StreamSettings};
use periplus_checkpoint::{CheckpointError, FloatType, Weights, tensor_shapes};
use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use tempfile::TempDir;

/// The smallest network there can be, or nearly so.
fn micro() -> Config {
    let json = r#"{"embed_dim": 64, "num_heads": 1, "depth": 4, "vit_depth": 1, "vit_heads": 1, "patch_size": 2,
        "pos_grid": 2, "num_registers": 1, "mlp_ratio": 1, "taps": [0, 1, 2, 3], "camera_depth": 1,
        "camera_heads": 1, "dpt_features": 8, "dpt_hidden": 4, "dpt_channels": [4, 4, 4, 4]}"#;
    Config::from_json(json).unwrap()
}

/// A tensor to be written: type, shape, bytes.
type Raw = (Dtype, Vec<usize>, Vec<u8>);

/// The weights of the smallest network, changed by tests.
fn raw() -> BTreeMap<String, Raw> {
    static WEIGHTS: OnceLock<BTreeMap<String, Raw>> = OnceLock::new();
    let make = || {
        let weights = Weights::synthetic(micro(), 1).unwrap();
        let tensor = |(name, shape): (String, Vec<usize>)| {
            let bytes = values(&weights, &name).into_iter().flat_map(f32::to_le_bytes).collect();
            (name, (Dtype::F32, shape, bytes))
        };
        tensor_shapes(&micro()).into_iter().map(tensor).collect()
    };
    WEIGHTS.get_or_init(make).clone()
}

fn values(weights: &Weights, name: &str) -> Vec<f32> {
    weights.get(name).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// A file that PyTorch wrote.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    fn safetensors(&self, tensors: &BTreeMap<String, Raw>, config: Option<&str>) -> PathBuf {
        let views = tensors
            .iter()
            .map(|(name, (dtype, shape, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
        let metadata = config.map(|config| HashMap::from([("config".to_owned(), config.to_owned())]));
        self.file("some.safetensors", safetensors::serialize(views, metadata).unwrap())
    }
}

/// The error of opening a file, with the file called FILE.
fn refusal(path: &Path, config: Option<&Path>) -> String {
    match Weights::open(path, config) {
        Ok(_) => panic!("{} was not refused", path.display()),
        Err(error) => error.to_string().replace(&path.display().to_string(), "FILE"),
    }
}

#[test]
fn what_is_written_is_read_back() {
    let folder = Folder::new();
    let weights = Weights::synthetic(micro(), 3).unwrap();
    for float in [FloatType::F32, FloatType::Bf16, FloatType::F16] {
        let path = folder.path("weights.safetensors");
        weights.write(&path, float).unwrap();
        let read = Weights::open(&path, None).unwrap();
        assert_eq!(read.config(), &micro());
        assert_eq!(read.float_type(), float);
        assert_eq!(read.float_types(), BTreeMap::from([(float, micro().parameters())]));
        assert_eq!(read.bytes(), micro().parameters() * float.size() as u64);
        assert_eq!(read.unexpected().count(), 0);
        for (name, shape) in tensor_shapes(&micro()) {
            assert_eq!(read.get(&name).unwrap().dims(), shape);
            let expected = values(&weights, &name).into_iter().map(|value| match float {
                FloatType::F32 => value,
                FloatType::Bf16 => bf16::from_f32(value).to_f32(),
                FloatType::F16 => f16::from_f32(value).to_f32(),
            });
            assert_eq!(values(&read, &name), expected.collect::<Vec<_>>(), "{name} in {float}");
        }
        // And once more: the memory of the first time was given back, the file was not.
        let name = "aggregator.camera_token";
        assert_eq!(values(&read, name), values(&read, name));
    }
    assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 1, "partial files were left behind");
}

#[test]
fn halves_round_to_nearest_with_ties_to_even() {
    let folder = Folder::new();
    let mut tensors = raw();
    let (_, _, bytes) = tensors.get_mut("aggregator.camera_token").unwrap();
    // Halfway between neighbours of 1 in each type, then a little more; the smallest and a vanishing half; infinity.
    let given = [1.0 + 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-8), 1.0 + 2f32.powi(-11), 1.0 + 3.0 * 2f32.powi(-11)];
    let given = [&given[..], &[2f32.powi(-24), 2f32.powi(-26), f32::INFINITY, -0.0]].concat();
    for (word, value) in bytes.chunks_mut(4).zip(&given) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    let source = Weights::open(&folder.safetensors(&tensors, None), None).unwrap();
    for (float, expected) in [
        (FloatType::Bf16, [1.0, 1.0 + 2f32.powi(-6), 1.0, 1.0, 2f32.powi(-24), 2f32.powi(-26), f32::INFINITY, -0.0]),
        (FloatType::F16, [given[0], given[1], 1.0, 1.0 + 2f32.powi(-9), 2f32.powi(-24), 0.0, f32::INFINITY, -0.0]),
    ] {
        let path = folder.path("rounded.safetensors");
        source.write(&path, float).unwrap();
        let read = Weights::open(&path, None).unwrap();
        assert_eq!(values(&read, "aggregator.camera_token")[..8], expected, "{float}");
    }
}

#[test]
fn numbers_too_large_for_a_half_stop_the_writing() {
    let folder = Folder::new();
    let mut tensors = raw();
    let (_, _, bytes) = tensors.get_mut("aggregator.scale_token").unwrap();
    bytes[..8].copy_from_slice(&[1e6f32.to_le_bytes(), (-65520f32).to_le_bytes()].concat());
    let weights = Weights::open(&folder.safetensors(&tensors, None), None).unwrap();
    let path = folder.path("half.safetensors");
    assert_eq!(
        weights.write(&path, FloatType::F16).unwrap_err().to_string(),
        "2 values of tensor aggregator.scale_token are too large for f16; use bf16 or f32"
    );
    assert!(!path.exists());
    weights.write(&path, FloatType::Bf16).unwrap();
}

#[test]
fn who_follows_the_progress_can_stop_it() {
    let folder = Folder::new();
    let path = folder.file("weights.safetensors", "an earlier file");
    let weights = Weights::synthetic(micro(), 0).unwrap();
    let half = |done, total| if 2 * done < total { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    let weights = weights.with_progress(half);
    assert!(matches!(weights.write(&path, FloatType::F32), Err(CheckpointError::Stopped)));
    assert_eq!(fs::read(&path).unwrap(), b"an earlier file");
    assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 1, "partial files were left behind");
}

#[test]
fn progress_ends_at_the_total_when_a_file_is_written() {
    let folder = Folder::new();
    let last = Arc::new(Mutex::new((0, 0)));
    let inner = Arc::clone(&last);
    let weights = Weights::synthetic(micro(), 0).unwrap();
    let weights = weights.with_progress(move |done, total| {
        *inner.lock().unwrap() = (done, total);
        ControlFlow::Continue(())
    });
    weights.write(&folder.path("weights.safetensors"), FloatType::F16).unwrap();
    assert_eq!(*last.lock().unwrap(), (micro().weight_bytes(4), micro().weight_bytes(4)));
}

#[test]
fn the_architecture_is_found() {
    let folder = Folder::new();
    // From the shapes.
    let path = folder.safetensors(&raw(), None);
    assert_eq!(Weights::open(&path, None).unwrap().config(), &micro());
    // From a configuration file, where the shapes leave it open.
    let four_heads = Config { camera_heads: 4, ..micro() };
    let config = folder.file("config.json", four_heads.to_json());
    assert_eq!(Weights::open(&path, Some(&config)).unwrap().config(), &four_heads);
    // From the metadata, with which a configuration file must agree.
    let path = folder.safetensors(&raw(), Some(&four_heads.to_json()));
    assert_eq!(Weights::open(&path, None).unwrap().config(), &four_heads);
    let window = StreamSettings { window: 5, ..StreamSettings::default() };
    let four_heads = Config { stream: window, ..four_heads };
    let config = folder.file("config.json", four_heads.to_json());
    assert_eq!(Weights::open(&path, Some(&config)).unwrap().config(), &four_heads);
    // A given file wins, also over one of another network.
    let other = folder.file("other.json", micro().to_json());
    assert_eq!(Weights::open(&path, Some(&other)).unwrap().config(), &micro());
}

#[test]
fn the_config_of_another_program_is_none() {
    let folder = Folder::new();
    let given = folder.file("config.json", micro().to_json());
    for foreign in ["", "configs/train.yaml", "lr: 0.1", "[1, 2]", "null", r#"{"lr": 0.1, "model": {"depth": 3}}"#, "{"]
    {
        let path = folder.safetensors(&raw(), Some(foreign));
        assert_eq!(Weights::open(&path, None).unwrap().config(), &micro(), "{foreign}");
        assert_eq!(Weights::open(&path, Some(&given)).unwrap().config(), &micro(), "{foreign}");
    }
    // One that is meant for us is checked, but a given file wins over it.
    let path = folder.safetensors(&raw(), Some(r#"{"depth": "four"}"#));
    assert!(refusal(&path, None).contains("`depth`"));
    assert_eq!(Weights::open(&path, Some(&given)).unwrap().config(), &micro());
}

#[test]
fn the_mask_token_need_not_be_there() {
    const TOKEN: &str = "aggregator.patch_embed.mask_token";
    let folder = Folder::new();
    let mut tensors = raw();
    tensors.remove(TOKEN).unwrap();
    let weights = Weights::open(&folder.safetensors(&tensors, None), None).unwrap();
    assert!(!weights.contains(TOKEN));
    let copy = folder.path("copy.safetensors");
    weights.write(&copy, FloatType::F32).unwrap();
    assert!(!Weights::open(&copy, None).unwrap().contains(TOKEN));
}

#[test]
fn the_same_weights_give_the_same_bytes() {
    let folder = Folder::new();
    let weights = Weights::synthetic(micro(), 0).unwrap();
    let bytes = || {
        let path = folder.path("weights.safetensors");
        weights.write(&path, FloatType::Bf16).unwrap();
        fs::read(path).unwrap()
    };
    let first = bytes();
    assert!((0..20).all(|_| bytes() == first));
}

#[test]
fn prefixes_of_names_are_taken_off() {
    let folder = Folder::new();
    for prefix in ["module.", "_orig_mod.", "model.", "ema.", "module._orig_mod."] {
        let tensors = raw().into_iter().map(|(name, raw)| (format!("{prefix}{name}"), raw)).collect();
        let weights = Weights::open(&folder.safetensors(&tensors, None), None).unwrap();
        assert_eq!(values(&weights, "aggregator.camera_token").len(), 128, "{prefix}");
        assert_eq!(weights.unexpected().count(), 0);
    }
    let both = ["net.", "ema."]
        .into_iter()
        .flat_map(|prefix| raw().into_iter().map(move |(name, raw)| (format!("{prefix}{name}"), raw)));
    let path = folder.safetensors(&both.collect(), None);
    assert_eq!(refusal(&path, None), "FILE holds several sets of weights, say which one to use: ema, net");
    assert!(Weights::open_any(&path, None, Some("ema")).is_ok());
}

/// Checkpoints in several files, as `save_pretrained` writes them.
#[test]
fn shards_are_read_by_their_index() {
    let folder = Folder::new();
    let whole = Weights::open(&folder.safetensors(&raw(), None), None).unwrap();
    let shards = Folder::new();
    let mut map = BTreeMap::new();
    let (mut first, mut second) = (BTreeMap::new(), BTreeMap::new());
    for (i, (name, tensor)) in raw().into_iter().enumerate() {
        let (shard, tensors) = if i % 2 == 0 { (1, &mut first) } else { (2, &mut second) };
        map.insert(name.clone(), format!("model-{shard:05}-of-00002.safetensors"));
        tensors.insert(name, tensor);
    }
    for (shard, tensors) in [(1, first), (2, second)] {
        let path = shards.path(&format!("model-{shard:05}-of-00002.safetensors"));
        fs::rename(shards.safetensors(&tensors, None), path).unwrap();
    }
    let json = |map: &BTreeMap<String, String>| {
        format!(r#"{{"metadata": {{"total_size": 1}}, "weight_map": {}}}"#, serde_json::to_string(map).unwrap())
    };
    let index = shards.file("model.safetensors.index.json", json(&map));
    for path in [index.as_path(), shards.0.path()] {
        let weights = Weights::open(path, None).unwrap();
        for name in map.keys() {
            assert_eq!(values(&weights, name), values(&whole, name), "{name}");
        }
    }
    let lone = shards.path("model-00001-of-00002.safetensors");
    assert_eq!(
        refusal(&lone, None),
        "FILE is one of several shards of a checkpoint: give the index file or the folder instead"
    );
    // A shard that is missing is named, and an index leads to no other folder.
    fs::remove_file(shards.path("model-00002-of-00002.safetensors")).unwrap();
    assert!(refusal(&index, None).contains("model-00002-of-00002.safetensors"));
    // So is one that is something else, for what it is.
    let second = "model-00002-of-00002.safetensors";
    for (bytes, what) in [
        (&b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"[..], "is a Git LFS pointer: fetch the file"),
        (b"<!DOCTYPE html><html></html>", "is a web page: the download went wrong"),
    ] {
        let shard = shards.file(second, bytes);
        let error = Weights::open(&index, None).err().unwrap().to_string();
        assert!(error.starts_with(&format!("{} {what}", shard.display())), "{error}");
    }
    fs::copy(data("bare.pt"), shards.path(second)).unwrap();
    assert!(
        refusal(&index, None)
            .starts_with("FILE is the index of a checkpoint in several PyTorch files: join them in Python")
    );
    map.insert("aggregator.camera_token".into(), "../weights.safetensors".into());
    assert!(refusal(&shards.file("model.safetensors.index.json", json(&map)), None).contains("not a file in the same"));
}

/// The same with PyTorch files, which are not read.
#[test]
fn pytorch_shards_are_told_what_to_do_with() {
    let folder = Folder::new();
    let index = r#"{"metadata": {}, "weight_map": {"aggregator.camera_token": "pytorch_model-00001-of-00002.bin"}}"#;
    let index = folder.file("pytorch_model.bin.index.json", index);
    let shard = folder.path("pytorch_model-00001-of-00002.bin");
    fs::copy(data("bare.pt"), &shard).unwrap();
    for path in [&index, folder.0.path()] {
        let error = Weights::open_any(path, None, None).err().unwrap().to_string();
        assert!(
            error.starts_with(&format!("{} is the index of a checkpoint in several PyTorch files: ", index.display())),
            "{error}"
        );
    }
    assert_eq!(
        Weights::open_any(&shard, None, None).err().unwrap().to_string(),
        format!(
            "{} is one of several shards of a checkpoint: give the index file or the folder instead",
            shard.display()
        )
    );
    fs::write(&shard, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n").unwrap();
    let error = Weights::open_any(&index, None, None).err().unwrap().to_string();
    assert!(error.starts_with(&format!("{} is a Git LFS pointer", shard.display())), "{error}");
}

#[test]
fn the_key_and_the_prefix_of_the_weights_are_told() {
    let folder = Folder::new();
    for (prefix, key) in [("", ""), ("_orig_mod.", "_orig_mod"), ("module._orig_mod.", "module._orig_mod")] {
        let tensors = raw().into_iter().map(|(name, raw)| (format!("{prefix}{name}"), raw)).collect();
        assert_eq!(Weights::open(&folder.safetensors(&tensors, None), None).unwrap().key(), key);
    }
    assert_eq!(Weights::synthetic(micro(), 0).unwrap().key(), "");
}

#[test]
fn a_point_head_is_found() {
    let folder = Folder::new();
    let config = Config { point_head: true, ..micro() };
    let path = folder.path("points.safetensors");
    Weights::synthetic(config.clone(), 0).unwrap().write(&path, FloatType::F16).unwrap();
    let weights = Weights::open(&path, None).unwrap();
    let tensors = tensor_shapes(&config).into_keys().map(|name| {
        let tensor = weights.get(&name).unwrap();
        let bytes = values(&weights, &name).into_iter().flat_map(f32::to_le_bytes).collect();
        (name, (Dtype::F32, tensor.dims().to_vec(), bytes))
    });
    let path = folder.safetensors(&tensors.collect(), None);
    assert_eq!(Weights::open(&path, None).unwrap().config(), &config);
}

#[test]
fn shapes_that_leave_the_architecture_open_are_refused() {
    let folder = Folder::new();
    let mut deeper = raw();
    let block: Vec<_> = deeper.iter().filter(|(name, _)| name.contains("frame_blocks.3.")).collect();
    let block: Vec<_> = block.into_iter().map(|(name, raw)| (name.replace(".3.", ".4."), raw.clone())).collect();
    deeper.extend(block);
    assert_eq!(
        refusal(&folder.safetensors(&deeper, None), None),
        "FILE does not tell its architecture: it has 5 block pairs, and which four of them are tapped is unknown; give a \
         configuration file"
    );
    let mut uneven = raw();
    uneven.insert("aggregator.patch_embed.pos_embed".into(), (Dtype::F32, vec![1, 4, 64], vec![0; 1024]));
    assert_eq!(
        refusal(&folder.safetensors(&uneven, None), None),
        "FILE does not tell its architecture: the position embedding has 4 rows, not a square and one; give a \
         configuration file"
    );
    let mut flat = raw();
    flat.insert("aggregator.camera_token".into(), (Dtype::F32, vec![64], vec![0; 256]));
    assert_eq!(
        refusal(&folder.safetensors(&flat, None), None),
        "FILE does not tell its architecture: `aggregator.camera_token` has the shape [64] instead of 4 dimensions; \
         give a configuration file"
    );
    let mut narrow = raw();
    narrow.insert("aggregator.camera_token".into(), (Dtype::F32, vec![1, 2, 1, 65], vec![0; 520]));
    assert!(refusal(&folder.safetensors(&narrow, None), None).contains("`embed_dim` 65 over `num_heads` 1 must be 64"));
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let folder = Folder::new();
    let open = |tensors: &BTreeMap<String, Raw>| refusal(&folder.safetensors(tensors, None), None);

    let mut tensors = raw();
    tensors.retain(|name, _| !name.starts_with("aggregator.global_blocks.2."));
    assert_eq!(
        open(&tensors),
        "FILE lacks tensors of its network (18): aggregator.global_blocks.2.norm1.weight, \
         aggregator.global_blocks.2.norm1.bias, aggregator.global_blocks.2.attn.qkv.weight, \
         aggregator.global_blocks.2.attn.qkv.bias and 14 more"
    );

    let mut tensors = raw();
    tensors.remove("aggregator.camera_token");
    assert_eq!(open(&tensors), "FILE lacks tensors of its network (1): aggregator.camera_token");

    let mut tensors = raw();
    tensors.insert("depth_head.norm.weight".into(), (Dtype::F32, vec![2, 64], vec![0; 512]));
    assert_eq!(
        open(&tensors),
        "FILE has tensors of another shape than its network (1): depth_head.norm.weight should be [128] and is [2, 64]"
    );

    let mut tensors = raw();
    tensors.insert("depth_head.norm.weight".into(), (Dtype::I64, vec![128], vec![0; 1024]));
    tensors.insert("depth_head.norm.bias".into(), (Dtype::F64, vec![128], vec![0; 1024]));
    assert_eq!(
        open(&tensors),
        "FILE has tensors that are not float32, float16 or bfloat16 (2): depth_head.norm.weight (I64), \
         depth_head.norm.bias (F64)"
    );

    let mut tensors = raw();
    tensors.insert("track_head.weight".into(), (Dtype::I64, vec![1], vec![0; 8]));
    let weights = Weights::open(&folder.safetensors(&tensors, None), None).unwrap();
    assert_eq!(weights.unexpected().collect::<Vec<_>>(), ["track_head.weight"]);

    let other = BTreeMap::from([("model.embed.weight".to_owned(), (Dtype::F32, vec![1], vec![0; 4]))]);
    assert_eq!(open(&other), "FILE is a checkpoint of another model; it holds model.embed.weight");
    assert_eq!(open(&BTreeMap::new()), "FILE is a checkpoint of another model; it holds no tensors");
}

#[test]
fn wrong_configurations_are_refused_with_their_file() {
    let folder = Folder::new();
    let path = folder.safetensors(&raw(), Some(r#"{"depth": 0}"#));
    assert_eq!(refusal(&path, None), "FILE: the configuration's `depth` is 0, which must lie between 1 and 1024");
    // What others have put into a checkpoint is theirs; what somebody writes for us is meant for us.
    let with_author = micro().to_json().replacen('{', r#"{"author": "somebody", "#, 1);
    assert!(Weights::open(&folder.safetensors(&raw(), Some(&with_author)), None).is_ok());
    let path = folder.safetensors(&raw(), None);
    let config = folder.file("config.json", with_author);
    let error = refusal(&path, Some(&config));
    assert_eq!(error, format!("{}: the configuration's `author` is unknown", config.display()));
    let config = folder.file("config.json", "depth: 4");
    let error = refusal(&path, Some(&config));
    assert!(error.starts_with(&format!("{}: the configuration is not valid JSON: ", config.display())), "{error}");
    let error = refusal(&path, Some(&folder.path("nowhere.json")));
    assert!(error.starts_with("cannot read ") && error.contains("nowhere.json: No such file"), "{error}");
}

#[test]
fn other_files_are_told_what_they_are() {
    let folder = Folder::new();
    for (bytes, message) in [
        (
            &b"PK\x03\x04 and so on"[..],
            "FILE is a PyTorch file: convert it first with `periplus convert IN.pt OUT.safetensors`",
        ),
        (
            b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
            "FILE is a PyTorch file of the form used before version 1.6: save it again with a newer PyTorch, \
             torch.save(torch.load(PATH, map_location=\"cpu\"), NEW_PATH), and run `periplus convert` on that",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "FILE is a Git LFS pointer: fetch the file it stands for with `git lfs pull`",
        ),
        (b"\n<!DOCTYPE html><html></html>", "FILE is a web page: the download went wrong; check its address"),
        (
            b"Entry not found",
            "FILE is a text that says \"Entry not found\": the download went wrong; check its address",
        ),
        (b"GGUF\x03\0\0\0", "FILE is a GGUF file: give the safetensors or PyTorch file that it was made from"),
        (b"\x1f\x8b\x08\0", "FILE is compressed with gzip: unpack it first"),
        (
            b"some \x01 bytes, nothing else",
            "FILE is neither a safetensors nor a PyTorch file: give a .safetensors file, or convert a .pt file",
        ),
        (b"", "cannot read FILE: it is empty"),
    ] {
        assert_eq!(refusal(&folder.file("some", bytes), None), message);
    }
    assert_eq!(refusal(folder.0.path(), None), "cannot read FILE: it is a folder, give a file");
    assert!(refusal(&folder.path("nowhere"), None).starts_with("cannot read FILE: No such file or directory"));
}

/// A safetensors file of a given header.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn damaged_files_are_told_how() {
    let folder = Folder::new();
    let open = |bytes: &[u8]| refusal(&folder.file("some", bytes), None);
    let whole = fs::read(folder.safetensors(&raw(), None)).unwrap();

    let cut = "FILE is cut off: 1000 bytes are missing at its end; copy or download it again";
    assert_eq!(open(&whole[..whole.len() - 1000]), cut);
    assert!(open(&whole[..20]).starts_with("FILE is cut off: "));
    assert_eq!(open(&[&whole[..], b"abc"].concat()), "FILE is damaged: 3 bytes follow its last tensor");

    let absurd = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    let message = "FILE is damaged: its header claims 18446744073709551615 bytes, more than the format allows";
    assert_eq!(open(&absurd), message);

    assert!(open(&with_header("{not JSON}", 0)).starts_with("FILE is damaged: its header is not valid: "));
    let overlap = r#"{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}"#;
    assert_eq!(
        open(&with_header(overlap, 12)),
        "FILE is damaged: its header is not valid: invalid offset for tensor `b`"
    );
    let short = r#"{"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}"#;
    assert!(open(&with_header(short, 8)).starts_with("FILE is damaged: its header is not valid: invalid shape"));
    let far = r#"{"a": {"dtype": "U8", "shape": [1000000000000], "data_offsets": [0, 1000000000000]}}"#;
    assert_eq!(
        open(&with_header(far, 8)),
        "FILE is cut off: 999999999992 bytes are missing at its end; copy or download it again"
    );
    let overflow = r#"{"a": {"dtype": "F32", "shape": [9223372036854775807, 9223372036854775807],
        "data_offsets": [0, 8]}}"#;
    assert!(open(&with_header(overflow, 8)).starts_with("FILE is damaged: its header is not valid: overflow"));
    let most = r#"{"a": {"dtype": "U8", "shape": [18446744073709551615], "data_offsets": [0, 18446744073709551615]}}"#;
    assert!(open(&with_header(most, 8)).starts_with("FILE is damaged: its header "));
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let folder = Folder::new();
    let weights = Weights::synthetic(micro(), 0).unwrap();
    let path = folder.path("nowhere/weights.safetensors");
    let error = weights.write(&path, FloatType::F32).unwrap_err();
    assert!(matches!(error, CheckpointError::Write { .. }));
    let nowhere = folder.path("nowhere");
    let expected = format!("cannot write {}: there is no folder {}: make it first", path.display(), nowhere.display());
    assert_eq!(error.to_string(), expected);
    // A folder is not replaced.
    let path = folder.path("taken");
    fs::create_dir(&path).unwrap();
    let error = weights.write(&path, FloatType::F32).unwrap_err().to_string();
    assert_eq!(error, format!("cannot write {}: there is something that is not a regular file", path.display()));
    assert_eq!(fs::read_dir(folder.0.path()).unwrap().count(), 1, "partial files were left behind");
}

#[cfg(unix)]
#[test]
fn what_is_not_a_file_is_not_replaced() {
    let folder = Folder::new();
    let path = folder.path("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let error = Weights::synthetic(micro(), 0).unwrap().write(&path, FloatType::F32).unwrap_err().to_string();
    assert_eq!(error, format!("cannot write {}: there is something that is not a regular file", path.display()));
    assert!(!path.metadata().unwrap().is_file());
    // Nor is a link, even where it leads to a file.
    let (link, file) = (folder.path("link"), folder.path("file"));
    fs::write(&file, "mine").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let error = Weights::synthetic(micro(), 0).unwrap().write(&link, FloatType::F32).unwrap_err().to_string();
    assert_eq!(error, format!("cannot write {}: there is something that is not a regular file", link.display()));
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_read() {
    let folder = Folder::new();
    let (pipe, socket) = (folder.path("pipe"), folder.path("socket"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for path in [&pipe, &socket, Path::new("/dev/zero")] {
        let expected = format!(
            "cannot read {}: it is a pipe, a socket or a device, and only regular files are read",
            path.display()
        );
        assert_eq!(Weights::open(path, None).err().unwrap().to_string(), expected);
        assert_eq!(Weights::open_any(path, None, None).err().unwrap().to_string(), expected);
        assert_eq!(Config::read(path).unwrap_err().to_string(), expected);
    }
    let expected = format!("cannot read {}: it is a folder, give a file", folder.0.path().display());
    assert_eq!(Config::read(folder.0.path()).unwrap_err().to_string(), expected);
}

#[test]
fn a_checkpoint_is_not_read_as_a_configuration() {
    let folder = Folder::new();
    let path = folder.file("weights", vec![b' '; 2 << 20]);
    let expected = format!("cannot read {}: it is too long for a configuration", path.display());
    assert_eq!(Config::read(&path).unwrap_err().to_string(), expected);
}

#[cfg(unix)]
#[test]
fn written_files_are_readable_as_other_new_files_are() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let path = folder.path("weights.safetensors");
    Weights::synthetic(micro(), 0).unwrap().write(&path, FloatType::Bf16).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&folder.file("other", "")));
}

proptest! {
    #[test]
    fn no_header_panics(header in r#"\{("a": \{"dtype": "(F32|F4|U8)", "shape": \[[0-9]{0,20}(, [0-9]{1,20})?\], "data_offsets": \[[0-9]{1,20}, [0-9]{1,20}\]\}|[ -~]{0,40})\}"#, data in 0..64usize) {
        let folder = Folder::new();
        prop_assert!(Weights::open(&folder.file("some", with_header(&header, data)), None).is_err());
    }

    #[test]
    fn no_file_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let folder = Folder::new();
        prop_assert!(Weights::open_any(&folder.file("some", &bytes), None, None).is_err());
        let archive = [b"PK\x03\x04", &bytes[..]].concat();
        prop_assert!(Weights::open_any(&folder.file("some", archive), None, None).is_err());
    }
}

#[test]
fn no_cut_or_changed_byte_panics() {
    let folder = Folder::new();
    let whole = fs::read(folder.safetensors(&raw(), Some(&micro().to_json()))).unwrap();
    let header = 8 + u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
    for at in (0..header).step_by(37) {
        let path = folder.file("cut", &whole[..at]);
        assert!(Weights::open(&path, None).is_err());
        let mut changed = whole.clone();
        changed[at] ^= 0x11;
        // Some changes are harmless, such as one in a name that the network does not need.
        drop(Weights::open(&folder.file("changed", changed), None));
    }
}
