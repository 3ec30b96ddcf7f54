//! What a file is that is no picture of a kind that is read here.

/// The longest start of a text that is looked at.
const TEXT: usize = 512;

/// What contents are, and the way out; `None` if that is not known.
pub(super) fn other_kind(contents: &[u8]) -> Option<(&'static str, &'static str)> {
    const CONVERT: &str = "convert it to JPEG or PNG";
    const DOWNLOAD: &str = "the download went wrong; fetch it again";
    const VIDEO: &str = "extract its frames as pictures first";
    const UNPACK: &str = "unpack it first";
    let starts = |signature: &[u8]| contents.starts_with(signature);
    let text = contents[..contents.len().min(TEXT)].trim_ascii_start().to_ascii_lowercase();
    Some(match contents {
        _ if contents.get(4..8) == Some(b"ftyp") => match contents.get(8..12) {
            Some(b"heic" | b"heix" | b"hevc" | b"hevx" | b"heim" | b"heis" | b"mif1" | b"msf1") => {
                ("a HEIC picture, as iPhones take them", CONVERT)
            }
            Some(b"avif" | b"avis") => ("an AVIF picture", CONVERT),
            Some(b"crx ") => ("a camera's raw picture", CONVERT),
            _ => ("a video", VIDEO),
        },
        _ if starts(b"\xff\x0a") || starts(b"\0\0\0\x0cJXL \r\n\x87\n") => ("a JPEG XL picture", CONVERT),
        _ if starts(b"\xff\x4f\xff\x51") || starts(b"\0\0\0\x0cjP  \r\n\x87\n") => ("a JPEG 2000 picture", CONVERT),
        _ if starts(b"GIF8") => ("a GIF picture", CONVERT),
        _ if starts(b"v/1\x01") => ("an OpenEXR picture", CONVERT),
        _ if starts(b"8BPS") => ("a Photoshop file", CONVERT),
        _ if starts(b"\x93NUMPY") => ("a NumPy file", CONVERT),
        _ if starts(b"%PDF") => ("a PDF document", CONVERT),
        _ if starts(b"\x1a\x45\xdf\xa3") || (starts(b"RIFF") && contents.get(8..12) == Some(b"AVI ")) => {
            ("a video", VIDEO)
        }
        _ if starts(b"PK\x03\x04") || starts(b"PK\x05\x06") => ("a zip archive", UNPACK),
        _ if starts(b"\x1f\x8b") => ("compressed with gzip", UNPACK),
        _ if starts(b"version https://git-lfs") => {
            ("a Git LFS pointer, not the picture itself", "fetch the files with `git lfs pull`")
        }
        _ if text.starts_with(b"<svg") || (text.starts_with(b"<?xml") && find(&text, b"<svg").is_some()) => {
            ("an SVG drawing", CONVERT)
        }
        _ if text.starts_with(b"<!doctype html") || text.starts_with(b"<html") || text.starts_with(b"<?xml") => {
            ("a web page", DOWNLOAD)
        }
        [b'P', b'1'..=b'7', b' ' | b'\n' | b'\r' | b'\t', ..] => ("a PNM picture (PBM, PGM, PPM, PAM)", CONVERT),
        _ => return None,
    })
}

/// Where `part` begins.
pub(super) fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}
