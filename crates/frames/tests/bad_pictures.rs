//! What is no picture, or none that can be used, is told in one sentence.
#![allow(clippy::unwrap_used)] // helpers of tests, not only the tests

use std::path::Path;

use periplus_frames::{ImageSizeError, PictureError, Preprocess, Resize, decode};
use periplus_geometry::Raster;

fn data(path: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)).unwrap()
}

fn half(path: &str) -> Vec<u8> {
    let mut contents = data(path);
    contents.truncate(contents.len() / 2);
    contents
}

#[test]
fn what_is_no_picture() {
    assert!(matches!(decode(b"").unwrap_err(), PictureError::Empty));
    assert!(matches!(decode(b"\x01\x02\x03\x04\x05").unwrap_err(), PictureError::UnknownFormat));
    for signature in [&b"\xFF\xD8\xFF"[..], b"\x89PNG\r\n\x1a\n", b"BM", b"II*\0", b"RIFF\0\0\0\0WEBP"] {
        let error = decode(signature).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("damaged or cut short") || message.contains("is cut short"), "{message}");
    }
}

#[test]
fn pictures_cut_short() {
    for name in ["landscape.png", "landscape.webp", "landscape.bmp"] {
        let error = decode(&half(&format!("images/{name}"))).unwrap_err();
        assert!(matches!(error, PictureError::Damaged(_)), "{name}: {error:?}");
        assert!(error.to_string().contains("damaged or cut short"), "{error}");
    }
    assert!(decode(&half("kinds/rgb.tif")).unwrap_err().to_string().contains("damaged or cut short"));
}

/// The decoder would fill the missing part with gray and say nothing.
#[test]
fn a_jpeg_cut_short_is_not_filled_with_gray() {
    for name in ["landscape.jpg", "progressive.jpg", "orientation6.jpg"] {
        let whole = data(&format!("images/{name}"));
        assert!(decode(&whole).is_ok());
        for length in [whole.len() - 1, whole.len() * 3 / 4, whole.len() / 2, 200] {
            let error = decode(&whole[..length]).unwrap_err();
            assert!(matches!(error, PictureError::CutShort), "{name} of {length} bytes: {error:?}");
        }
    }
}

#[test]
fn bytes_behind_a_jpeg_are_ignored() {
    let mut contents = data("images/landscape.jpg");
    contents.extend([0, 0xFF, 0, 7]);
    assert!(decode(&contents).is_ok());
}

#[test]
fn a_picture_too_large_to_decode() {
    let error = decode(&data("20000x20000.png")).unwrap_err();
    assert!(
        matches!(error, PictureError::TooLarge { width: 20_000, height: 20_000, bytes: 1_200_000_000 }),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "the picture is 20000 x 20000 pixels, 1.12 GiB when decoded, over the limit of 512 MiB: scale it down first"
    );
    // The same for a header alone that promises more than any memory.
    let mut bmp = data("images/landscape.bmp");
    bmp[18..22].copy_from_slice(&30_000_u32.to_le_bytes());
    bmp[22..26].copy_from_slice(&30_000_u32.to_le_bytes());
    assert!(matches!(decode(&bmp).unwrap_err(), PictureError::TooLarge { .. }));
}

#[test]
fn kinds_that_are_not_read() {
    let error = decode(&data("float.tif")).unwrap_err();
    assert!(error.to_string().contains("a TIFF of floating-point samples, is not supported"), "{error}");
    let error = decode(&data("rgb.gif")).unwrap_err();
    assert_eq!(error.to_string(), "the file is a GIF picture: convert it to JPEG or PNG");
}

#[test]
fn image_sizes_that_are_not_whole_patches() {
    let new = |image_size, patch| Preprocess::new(image_size, patch, Resize::Crop).unwrap_err();
    assert_eq!(new(500, 14).to_string(), "image size 500 is not a multiple of the patch size 14: use 490 or 504");
    assert_eq!(new(0, 14).to_string(), "image size 0 is smaller than a patch of 14 pixels: use at least 14");
    assert_eq!(new(518, 0), ImageSizeError::NoPatch);
    assert_eq!(new(u32::MAX, 1), ImageSizeError::TooLarge { image_size: u32::MAX, limit: 13_377 });
    assert_eq!(new(u32::MAX, u32::MAX - 1), ImageSizeError::TooLarge { image_size: u32::MAX, limit: 0 });
    assert!(new(9, 14).to_string().ends_with("use at least 14"));
    // Whatever is suggested is accepted.
    assert!(new(20_001, 14).to_string().ends_with("is too large: use at most 13370"));
    assert!(Preprocess::new(13_370, 14, Resize::Crop).is_ok());
    assert!(new(13_369, 14).to_string().ends_with("use 13356 or 13370"));
}

#[test]
fn a_picture_too_flat_for_a_patch() {
    let picture = |width, height| Raster::new(width, height, vec![[0; 3]; width * height]).unwrap();
    let crop = Preprocess::new(518, 14, Resize::Crop).unwrap();
    let error = crop.apply(&picture(2000, 20)).unwrap_err();
    assert!(matches!(error, PictureError::TooSlender { width: 2000, height: 20, image_size: 518, patch: 14 }));
    assert!(error.to_string().contains("(2000 x 20 pixels) is too slender"), "{error}");
    assert!(crop.apply(&picture(2000, 40)).is_ok());
    let pad = Preprocess::new(518, 14, Resize::Pad).unwrap();
    assert!(matches!(pad.apply(&picture(20, 2000)).unwrap_err(), PictureError::TooSlender { .. }));
    assert!(matches!(pad.apply(&picture(0, 0)).unwrap_err(), PictureError::NoPixels { width: 0, height: 0 }));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// A byte changed anywhere, or the end cut off, gives a picture or an error.
    #[test]
    fn damage_never_panics(kind in 0_usize..8, at: proptest::sample::Index, byte: u8, length: proptest::sample::Index) {
        let name = ["rgb.tif", "cmyk.jpg", "rgba.webp", "palette.bmp", "orientation6.png", "two-bit.png", "bilevel.tif",
            "orientation6.tif"][kind];
        let mut contents = data(&format!("kinds/{name}"));
        let place = at.index(contents.len());
        contents[place] = byte;
        let _ = decode(&contents);
        let _ = decode(&contents[..length.index(contents.len())]);
    }
}

/// An end marker behind half of the data does not make a JPEG whole.
#[test]
fn a_jpeg_that_ends_early_and_is_closed_is_cut_short() {
    let whole = data("images/landscape.jpg");
    assert!(decode(&whole).is_ok());
    for length in [whole.len() * 9 / 10, whole.len() / 2] {
        let closed = [&whole[..length], b"\xFF\xD9"].concat();
        assert!(matches!(decode(&closed).unwrap_err(), PictureError::CutShort), "{length} of {}", whole.len());
    }
}

/// Some phones write the orientation as LONG instead of SHORT.
#[test]
fn an_orientation_of_four_bytes_turns_the_picture() {
    let mut contents = data("images/orientation6.jpg");
    let expected = decode(&contents).unwrap();
    let little = contents.windows(4).position(|bytes| bytes == b"\x12\x01\x03\x00");
    let big = contents.windows(4).position(|bytes| bytes == b"\x01\x12\x00\x03");
    match (little, big) {
        (Some(at), _) => {
            contents[at + 2] = 4;
            contents[at + 8..at + 12].copy_from_slice(&6_u32.to_le_bytes());
        }
        (None, Some(at)) => {
            contents[at + 3] = 4;
            contents[at + 8..at + 12].copy_from_slice(&6_u32.to_be_bytes());
        }
        (None, None) => panic!("the picture has no orientation"),
    }
    assert_eq!(decode(&contents).unwrap(), expected);
}

/// The first box of a file of the ISO base media format.
fn ftyp(major: &[u8], compatible: &[&[u8]]) -> Vec<u8> {
    let brands = [major, &[0; 4], &compatible.concat()].concat();
    [&(8 + brands.len() as u32).to_be_bytes()[..], b"ftyp", &brands, b"\0\0\0\x08free"].concat()
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let tar = [&[b'a'; 257][..], b"ustar\x0000"].concat();
    let packets = |start: usize, length: usize| {
        let packet: Vec<u8> = (0..length).map(|at| if at == start { 0x47 } else { 0xFF }).collect();
        packet.repeat(4)
    };
    let cut_in_a_letter = &"é".repeat(300).into_bytes()[..511];
    for (contents, kind, advice) in [
        (&ftyp(b"heic", &[b"mif1", b"heic"])[..], "a HEIC picture", "convert it"),
        (&ftyp(b"mif1", &[b"mif1", b"heic"]), "a HEIC picture", "convert it"),
        (&ftyp(b"msf1", &[b"hevc"]), "a HEIC picture", "convert it"),
        (&ftyp(b"avif", &[b"mif1", b"miaf"]), "an AVIF picture", "convert it"),
        (&ftyp(b"mif1", &[b"miaf", b"avif"]), "an AVIF picture", "convert it"),
        (&ftyp(b"mif1", &[b"miaf"]), "a HEIF picture", "convert it"),
        (&ftyp(b"crx ", &[b"isom"]), "a camera's raw picture (Canon CR3)", "a raw converter"),
        (&ftyp(b"qt  ", &[]), "a video (QuickTime)", "extract its frames"),
        (&ftyp(b"isom", &[b"avc1", b"avif"]), "a video (MP4)", "extract its frames"),
        (b"\0\0\0\x08wide\0\0\0\0mdat", "a video (QuickTime)", "extract its frames"),
        (b"\x1a\x45\xdf\xa3\x01\0\0\0", "a video (Matroska or WebM)", "extract its frames"),
        (b"RIFF\x10\0\0\0AVI LIST", "a video (AVI)", "extract its frames"),
        (&packets(0, 188), "a video (MPEG transport stream)", "extract its frames"),
        (&packets(4, 192), "a video (MPEG transport stream)", "extract its frames"),
        (b"\0\0\x01\xba\x44\0", "a video (MPEG program stream)", "extract its frames"),
        (b"\0\0\0\x01\x67\x42\0\x1e", "a video (H.264)", "extract its frames"),
        (b"YUV4MPEG2 W4 H4 F25:1\n", "a video (Y4M)", "extract its frames"),
        (b"\xff\x0a\0\0\0\0\0\0\0\0\0\0", "a JPEG XL picture", "convert it"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "a JPEG XL picture", "convert it"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000 picture", "convert it"),
        (b"GIF89a\x01\0\x01\0", "a GIF picture", "convert it"),
        (b"8BPS\0\x01", "a Photoshop file", "convert it"),
        (b"v/1\x01\x02\0\0\0", "an OpenEXR picture", "convert it"),
        (b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n", "a Radiance HDR picture", "convert it"),
        (b"P6 2 2 255\n\xff\xff\xff", "a PNM picture", "convert it"),
        (b"P5\n2 2 255\n\x80\x81\x82\x83", "a PNM picture", "convert it"),
        (b"FUJIFILMCCD-RAW 0201", "a camera's raw picture (Fujifilm RAF)", "a raw converter"),
        (b"IIRO\x08\0\0\0", "a camera's raw picture (Olympus ORF)", "a raw converter"),
        (b"IIU\0\x18\0\0\0", "a camera's raw picture (Panasonic RW2)", "a raw converter"),
        (b"PK\x03\x04\x14\0", "a ZIP archive", "unpack it"),
        (b"7z\xbc\xaf\x27\x1c\0\x04", "a 7z archive", "unpack it"),
        (b"Rar!\x1a\x07\x01\0", "a RAR archive", "unpack it"),
        (&tar, "a tar archive", "unpack it"),
        (b"\x1f\x8b\x08\0", "a file compressed with gzip", "unpack it"),
        (b"\xfd7zXZ\0\0\x04", "a file compressed with xz", "unpack it"),
        (b"BZh91AY", "a file compressed with bzip2", "unpack it"),
        (b"\x28\xb5\x2f\xfd\x04", "a file compressed with Zstandard", "unpack it"),
        (b"%PDF-1.7\n", "a PDF document", "convert it"),
        (b"\x93NUMPY\x01\0", "a NumPy array", "convert it"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer", "git lfs pull"),
        (b"\n <!DOCTYPE html><html></html>", "a web page (HTML)", "fetch the picture again"),
        (b"\xef\xbb\xbf<html><body>", "a web page (HTML)", "fetch the picture again"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code>", "an XML text", "fetch the picture again"),
        (b"<?xml version='1.0'?><svg width='2'/>", "an SVG drawing", "convert it"),
        (b"{\"error\": \"not found\"}", "a JSON text", "fetch the picture again"),
        (b"just some text, named .png", "a text", "text editor"),
        (cut_in_a_letter, "a text", "text editor"),
        (&[0; 2000], "made of zero bytes only", "copy or download it again"),
    ] {
        let message = decode(contents).unwrap_err().to_string();
        assert!(message.starts_with(&format!("the file is {kind}")) && message.contains(advice), "{kind}: {message}");
    }
    // A lossless and a 12-bit JPEG are sound files.
    let header = |marker: u8, bits: u8| {
        let frame = [0xFF, marker, 0, 11, bits, 0, 8, 0, 8, 1, 1, 0x11, 0];
        [&b"\xFF\xD8"[..], &frame, b"\xFF\xDA\0\x08\x01\x01\0\0\x3F\0\0\xFF\xD9"].concat()
    };
    for (contents, what) in [(header(0xC3, 8), "a lossless JPEG"), (header(0xC1, 12), "a JPEG of 12 bits")] {
        let message = decode(&contents).unwrap_err().to_string();
        assert!(message.contains(&format!("this picture, {what}, is not supported")), "{message}");
    }
}

/// A TIFF whose only page is a preview, with the data of a sensor in a directory of its own below it.
fn raw_tiff(make: &str) -> Vec<u8> {
    let entry = |tag: u16, kind: u16, count: u32, value: u32| {
        [&tag.to_le_bytes()[..], &kind.to_le_bytes(), &count.to_le_bytes(), &value.to_le_bytes()].concat()
    };
    let preview = [
        entry(256, 3, 1, 1),
        entry(257, 3, 1, 1),
        entry(258, 3, 1, 8),
        entry(262, 3, 1, 1),
        entry(271, 2, make.len() as u32, 200),
        entry(273, 4, 1, 4),
        entry(279, 4, 1, 1),
        entry(330, 4, 1, 150),
    ]
    .concat();
    let mut contents = [b"II*\0\x08\0\0\0\x08\0", &preview[..]].concat();
    contents.resize(150, 0);
    contents.extend([&[1, 0][..], &entry(262, 3, 1, 32_803), &[0; 4]].concat());
    contents.resize(200, 0);
    contents.extend(make.as_bytes());
    contents
}

/// They are TIFF files, of which a decoder would take the preview.
#[test]
fn raw_pictures_in_tiff_files_are_named() {
    for (make, kind) in [
        ("NIKON CORPORATION", "(Nikon NEF)"),
        ("SONY", "(Sony ARW)"),
        ("PENTAX", "(Pentax PEF)"),
        ("Samsung", "(Samsung SRW)"),
        ("Hasselblad", ""),
    ] {
        let message = decode(&raw_tiff(&format!("{make}\0"))).unwrap_err().to_string();
        let expected = format!("the file is a camera's raw picture {kind}");
        assert!(message.starts_with(expected.trim_end()) && message.contains("raw converter"), "{make}: {message}");
    }
    let with_tag = |tag: u16, header: &[u8]| {
        let contents =
            [b"II*\0\x10\0\0\0", header, &[0; 6], &[1, 0], &tag.to_le_bytes(), &[1, 0, 4, 0, 0, 0, 1, 4, 0, 0]];
        [&contents.concat()[..], &[0; 4]].concat()
    };
    for (contents, kind) in [(with_tag(50_706, &[0; 2]), "(DNG)"), (with_tag(254, b"CR"), "(Canon CR2)")] {
        let message = decode(&contents).unwrap_err().to_string();
        assert!(message.starts_with(&format!("the file is a camera's raw picture {kind}")), "{message}");
    }
}
