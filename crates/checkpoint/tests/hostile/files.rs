//! Checkpoints made by hand: whole ones to start from, and parts to put together wrongly.

use std::fmt::Write as _;
use std::io::{Cursor, Write as _};

use periplus_checkpoint::config::Config;
use periplus_checkpoint::tensor_shapes;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// A small network, whose tensors are 140 in number.
pub(crate) const CONFIG: &str = r#"{"embed_dim": 64, "num_heads": 1, "depth": 4, "vit_depth": 1, "vit_heads": 1, "patch_size": 2,
    "pos_grid": 2, "num_registers": 1, "mlp_ratio": 1, "taps": [0, 1, 2, 3], "camera_depth": 1,
    "camera_heads": 1, "dpt_features": 8, "dpt_hidden": 4, "dpt_channels": [4, 4, 4, 4]}"#;

/// A safetensors file of a header and so many bytes of zeros.
pub(crate) fn safetensors(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

/// A safetensors file of tensors of the network, all of them or the first few, with a configuration in its metadata.
pub(crate) fn whole_safetensors(prefix: &str, tensors: usize) -> Vec<u8> {
    let config = Config::from_json(CONFIG).unwrap();
    let mut header = format!(r#"{{"__metadata__":{{"config":{:?},"format":"pt"}}"#, config.to_json());
    let mut end = 0;
    for (name, shape) in tensor_shapes(&config).into_iter().take(tensors) {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        write!(header, r#","{prefix}{name}":{{"dtype":"F16","shape":{shape:?},"data_offsets":[{start},{end}]}}"#)
            .unwrap();
    }
    safetensors(&(header + "}"), end)
}

/// A zip archive as PyTorch writes it.
pub(crate) fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A PyTorch file of a pickle and one storage of 64 bytes.
pub(crate) fn pytorch(pickle: &[u8]) -> Vec<u8> {
    archive(&[("x/data.pkl", pickle), ("x/byteorder", b"little"), ("x/data/0", &[0; 64])])
}

/// The instructions for a short text.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&[0x8c, text.len() as u8], text.as_bytes()].concat()
}

/// The instructions for an import.
pub(crate) fn import(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

/// The instructions for a tensor: a view into a storage of so many float32.
pub(crate) fn tensor(stored: u32, shape: &[usize], strides: &[usize]) -> Vec<u8> {
    let integer = |value: usize| [&b"J"[..], &(value as u32).to_le_bytes()].concat();
    let tuple = |values: &[usize]| {
        let values: Vec<_> = values.iter().flat_map(|&value| integer(value)).collect();
        [b"(", &values[..], b"t"].concat()
    };
    [
        import("torch._utils", "_rebuild_tensor_v2"),
        b"((".to_vec(),
        text("storage"),
        import("torch", "FloatStorage"),
        text("0"),
        text("cpu"),
        integer(stored as usize),
        b"tQK\x00".to_vec(),
        tuple(shape),
        tuple(strides),
        [&b"\x89"[..], &import("collections", "OrderedDict"), b")RtR"].concat(),
    ]
    .concat()
}

/// A pickle of tensors of the network under a key, each of one value that is repeated by strides of 0.
pub(crate) fn expanded(config: &Config, key: &str, tensors: usize) -> Vec<u8> {
    let mut pickle = [&b"\x80\x02}("[..], &text(key), b"}("].concat();
    for (name, shape) in tensor_shapes(config).into_iter().take(tensors) {
        pickle.extend([text(&name), tensor(16, &shape, &vec![0; shape.len()])].concat());
    }
    pickle.extend(b"uu.");
    pickle
}
