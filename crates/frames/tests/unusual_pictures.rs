//! Pictures as other programs write them: decoded to the right values, or refused in plain words.
#![allow(clippy::unwrap_used)] // helpers of tests, not only the tests

use std::path::Path;

use periplus_frames::{PictureError, PictureWarning, SampleBits, decode, decode_with_warnings, used_sample_bits};

fn data(path: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)).unwrap()
}

/// A little-endian TIFF of uncompressed 8-bit samples: `tags` of one SHORT each besides those of size and place.
fn tiff(width: u16, height: u16, samples: u16, tags: &[(u16, u16)], chunks: &[&[u8]]) -> Vec<u8> {
    let mut contents = b"II*\0\0\0\0\0".to_vec();
    let place = |contents: &mut Vec<u8>, values: &[u32]| {
        let at = contents.len() as u32;
        contents.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        at
    };
    let mut offsets = Vec::new();
    for chunk in chunks {
        offsets.push(contents.len() as u32);
        contents.extend(*chunk);
    }
    let lengths: Vec<u32> = chunks.iter().map(|chunk| chunk.len() as u32).collect();
    let tiled = tags.iter().any(|&(tag, _)| tag == 322);
    let many = chunks.len() > 1;
    let (offsets, lengths) =
        if many { (place(&mut contents, &offsets), place(&mut contents, &lengths)) } else { (offsets[0], lengths[0]) };
    let bits = contents.len() as u32;
    contents.extend((0..samples.max(3)).flat_map(|_| 8_u16.to_le_bytes()));
    let mut entries: Vec<(u16, u16, u32, u32)> = vec![
        (256, 3, 1, width.into()),
        (257, 3, 1, height.into()),
        (258, 3, samples.into(), if samples < 3 { 0x0008_0008 } else { bits }),
        (277, 3, 1, samples.into()),
        (if tiled { 324 } else { 273 }, 4, chunks.len() as u32, offsets),
        (if tiled { 325 } else { 279 }, 4, chunks.len() as u32, lengths),
    ];
    entries.extend(tags.iter().map(|&(tag, value)| (tag, 3, 1, u32::from(value))));
    entries.sort_unstable();
    let directory = contents.len() as u32;
    contents[4..8].copy_from_slice(&directory.to_le_bytes());
    contents.extend((entries.len() as u16).to_le_bytes());
    for (tag, kind, count, value) in entries {
        contents.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        contents.extend([count.to_le_bytes(), value.to_le_bytes()].concat());
    }
    contents.extend([0; 4]);
    contents
}

fn one_pixel(samples: &[u8], tags: &[(u16, u16)]) -> [u8; 3] {
    decode(&tiff(1, 1, samples.len() as u16, tags, &[samples])).unwrap().values()[0]
}

/// The `image` crate's decoder panics at these.
#[test]
fn tiff_of_four_colours_in_planes_and_tiles() {
    // One tile of 16 x 16 for each ink; the picture is its corner.
    let planes: Vec<Vec<u8>> = [255, 0, 128, 51].iter().map(|&ink| vec![ink; 256]).collect();
    let planes: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
    let tags = [(262, 5), (284, 2), (322, 16), (323, 16)];
    let picture = decode(&tiff(5, 3, 4, &tags, &planes)).unwrap();
    assert_eq!((picture.width(), picture.height()), (5, 3));
    // Pillow: 204 - 204 * ink / 255, rounded.
    assert!(picture.values().iter().all(|&pixel| pixel == [0, 204, 102]), "{:?}", picture.values()[0]);
}

#[test]
fn tiff_fill_order_of_every_colour() {
    let reversed = |samples: &[u8]| samples.iter().map(|value| value.reverse_bits()).collect::<Vec<_>>();
    for (samples, photometric) in [(&[10_u8, 20, 30, 40][..], 5), (&[10, 20, 30], 2), (&[10], 1)] {
        let expected = one_pixel(samples, &[(262, photometric)]);
        assert_eq!(one_pixel(&reversed(samples), &[(262, photometric), (266, 2)]), expected, "{photometric}");
    }
}

/// As Pillow: the colours are divided by the opacity, then blended onto white.
#[test]
fn tiff_with_colours_multiplied_by_opacity() {
    let rgb = (262, 2);
    assert_eq!(one_pixel(&[50, 0, 100, 128], &[rgb, (338, 1)]), [177, 127, 227]);
    assert_eq!(one_pixel(&[100, 0, 200, 128], &[rgb, (338, 2)]), [177, 127, 227]);
    assert_eq!(one_pixel(&[100, 0, 200, 128], &[rgb, (338, 0)]), [100, 0, 200]);
    assert_eq!(one_pixel(&[0, 0, 0, 0], &[rgb, (338, 1)]), [255; 3]);
}

/// As libtiff: only LZW and Deflate have a predictor.
#[test]
fn tiff_without_compression_has_no_predictor() {
    let contents = tiff(3, 1, 1, &[(262, 1), (317, 2)], &[&[10, 20, 30]]);
    assert_eq!(decode(&contents).unwrap().values(), [[10; 3], [20; 3], [30; 3]]);
}

#[test]
fn what_a_tiff_has_that_is_not_read_is_named() {
    let said = |tags: &[(u16, u16)]| decode(&tiff(1, 1, 3, tags, &[&[1, 2, 3]])).unwrap_err().to_string();
    for (tags, what) in [
        (&[(262, 2), (259, 50_000)][..], "a TIFF compressed with Zstandard"),
        (&[(262, 2), (259, 34_925)], "a TIFF compressed with LZMA"),
        (&[(262, 1), (259, 3)], "a TIFF compressed with a fax code (CCITT Group 3)"),
        (&[(262, 8)], "a TIFF with L*a*b* colours"),
        (&[(262, 6)], "a TIFF with YCbCr colours without JPEG"),
        (&[(262, 2), (339, 2)], "a TIFF of signed samples"),
    ] {
        let message = said(tags);
        assert_eq!(message, format!("this picture, {what}, is not supported: convert it to 8-bit PNG or JPEG"));
    }
}

/// A TIFF of gray of one row, its samples packed as they are given, at the value of `bits`.
fn gray_tiff(width: u16, bits: u16, row: &[u8]) -> Vec<u8> {
    let mut contents = tiff(width, 1, 1, &[(262, 1)], &[row]);
    let entry = contents.windows(4).position(|entry| entry == [2, 1, 3, 0]).unwrap();
    contents[entry + 8..entry + 12].copy_from_slice(&u32::from(bits).to_le_bytes());
    contents
}

/// Packed from the highest bit on, as TIFF 6.0 has it; the high 8 bits are taken.
#[test]
fn tiff_gray_of_ten_twelve_and_fourteen_bits() {
    for bits in [9_u16, 10, 11, 12, 13, 14, 15] {
        let samples = [0, 1 << (bits - 1), (1 << bits) - 1, 77 << (bits - 8)];
        let ones: Vec<bool> =
            samples.iter().flat_map(|sample: &u32| (0..bits).rev().map(move |bit| sample >> bit & 1 == 1)).collect();
        let byte = |eight: &[bool]| eight.iter().enumerate().fold(0, |byte, (i, &one)| byte | u8::from(one) << (7 - i));
        let row: Vec<u8> = ones.chunks(8).map(byte).collect();
        let picture = decode(&gray_tiff(4, bits, &row)).unwrap();
        assert_eq!(picture.values(), [[0; 3], [128; 3], [255; 3], [77; 3]], "{bits} bits");
    }
}

/// Values of 12 bits in 16: dark as they are, bright when said, white where they need more.
#[test]
fn samples_that_use_fewer_bits_than_they_have() {
    let row: Vec<u8> = [0_u16, 2048, 4095, 16].iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let contents = gray_tiff(4, 16, &row);
    let twelve = SampleBits::new(12).unwrap();
    assert_eq!(used_sample_bits(&contents), Some(twelve));
    let (picture, warnings) = decode_with_warnings(&contents, SampleBits::ALL).unwrap();
    assert_eq!(picture.values(), [[0; 3], [8; 3], [15; 3], [0; 3]]);
    assert_eq!(warnings, [PictureWarning::UnusedBits(twelve)]);
    let (picture, warnings) = decode_with_warnings(&contents, twelve).unwrap();
    assert_eq!(picture.values(), [[0; 3], [128; 3], [255; 3], [1; 3]]);
    assert_eq!(warnings, []);
    let (picture, warnings) = decode_with_warnings(&contents, SampleBits::new(10).unwrap()).unwrap();
    assert_eq!(picture.values(), [[0; 3], [255; 3], [255; 3], [4; 3]]);
    assert_eq!(warnings, [PictureWarning::Clipped]);
    assert_eq!([7, 17].map(SampleBits::new), [None; 2]);
    // Pictures that use all bits, and those of 8, are as they were.
    assert_eq!(used_sample_bits(&data("kinds/rgb16.png")), Some(SampleBits::ALL));
    assert_eq!(used_sample_bits(&data("kinds/gray.bmp")), None);
}

/// The pages are counted in the warning.
#[test]
fn a_tiff_of_several_pages() {
    let mut contents = tiff(1, 1, 1, &[(262, 1)], &[&[9]]);
    let directory = u32::from_le_bytes(contents[4..8].try_into().unwrap()) as usize;
    let page = contents[directory..].to_vec();
    for _ in 0..2 {
        // The last four bytes of a directory say where the next one is.
        let (next, end) = (contents.len() as u32, contents.len() - 4);
        contents[end..].copy_from_slice(&next.to_le_bytes());
        contents.extend(&page);
    }
    let (picture, warnings) = decode_with_warnings(&contents, SampleBits::ALL).unwrap();
    assert_eq!((picture.values(), warnings), (&[[9; 3]][..], vec![PictureWarning::Pages(3)]));
    assert!(PictureWarning::Pages(3).to_string().contains("has 3 pages"));
}

/// A tile of a million by a million pixels, of which the picture is one.
#[test]
fn a_tiff_of_huge_tiles_takes_no_memory() {
    let mut contents = tiff(1, 1, 1, &[(262, 1), (259, 5), (322, 1), (323, 1)], &[&[0x80, 0x0b, 0x60, 0x50]]);
    for tag in [322_u16, 323] {
        let entry = [&tag.to_le_bytes()[..], &[3, 0]].concat();
        let at = contents.windows(4).position(|bytes| bytes == entry).unwrap();
        contents[at + 2] = 4;
        contents[at + 8..at + 12].copy_from_slice(&0x000F_FFF0_u32.to_le_bytes());
    }
    assert!(matches!(decode(&contents).unwrap_err(), PictureError::CutShortTiff));
}

/// Half a progressive picture has scans of full size and one that ends early.
#[test]
fn a_progressive_jpeg_that_ends_early_and_is_closed_is_cut_short() {
    let whole = data("images/progressive.jpg");
    assert!(decode(&whole).is_ok());
    for tenths in [3, 5, 7, 9] {
        let closed = [&whole[..whole.len() * tenths / 10], b"\xFF\xD9"].concat();
        assert!(matches!(decode(&closed).unwrap_err(), PictureError::CutShort), "{tenths} tenths");
    }
}

/// Every Huffman table that a JPEG lacks is the standard one, not only all four.
#[test]
fn a_jpeg_without_some_of_its_huffman_tables() {
    let whole = data("images/landscape.jpg");
    let expected = decode(&whole).unwrap();
    for left_out in [0x00, 0x10, 0x01, 0x11] {
        let mut contents = whole[..2].to_vec();
        let mut rest = &whole[2..];
        while rest[1] != 0xDA {
            let length = 2 + usize::from(u16::from_be_bytes([rest[2], rest[3]]));
            let (segment, after) = rest.split_at(length);
            rest = after;
            if segment[1] != 0xC4 {
                contents.extend(segment);
                continue;
            }
            let mut tables = &segment[4..];
            while !tables.is_empty() {
                let (table, others) =
                    tables.split_at(17 + tables[1..17].iter().map(|&n| usize::from(n)).sum::<usize>());
                if table[0] != left_out {
                    contents.extend([&[0xFF, 0xC4], &(2 + table.len() as u16).to_be_bytes()[..], table].concat());
                }
                tables = others;
            }
        }
        contents.extend(rest);
        assert!(contents.len() < whole.len() + 16);
        assert_eq!(decode(&contents).unwrap().values(), expected.values(), "{left_out:x}");
    }
}

fn with_app1(payload: &[u8]) -> Vec<u8> {
    let jpeg = data("images/landscape.jpg");
    let length = (payload.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], &[0xFF, 0xE1], &length, payload, &jpeg[2..]].concat()
}

fn is_turned(contents: &[u8]) -> bool {
    let plain = decode(&data("images/landscape.jpg")).unwrap();
    let picture = decode(contents).unwrap();
    (picture.width(), picture.height()) == (plain.height(), plain.width())
}

#[test]
fn orientation_of_every_type_that_pillow_takes() {
    let exif = |kind: u8, value: [u8; 4], behind: &[u8]| {
        // A directory of one entry: tag 0x0112, type, a count of 1, value.
        let entry = [&[0x12, 0x01, kind, 0, 1, 0, 0, 0], &value[..]].concat();
        [b"Exif\0\0II*\0\x08\0\0\0\x01\0", &entry[..], &[0; 4], behind].concat()
    };
    for kind in [3, 4, 6, 8, 9] {
        assert!(is_turned(&with_app1(&exif(kind, [6, 0, 0, 0], &[]))), "{kind}");
    }
    assert!(is_turned(&with_app1(&exif(11, 6_f32.to_le_bytes(), &[]))));
    assert!(is_turned(&with_app1(&exif(5, [26, 0, 0, 0], &[12, 0, 0, 0, 2, 0, 0, 0]))));
    // Nonsense asks for nothing.
    assert!(!is_turned(&with_app1(&exif(5, [26, 0, 0, 0], &[6, 0, 0, 0, 0, 0, 0, 0]))));
    assert!(!is_turned(&with_app1(&exif(5, [255; 4], &[]))));
    assert!(!is_turned(&with_app1(&exif(11, f32::NAN.to_le_bytes(), &[]))));
    assert!(!is_turned(&with_app1(&exif(3, [9, 0, 0, 0], &[]))));
}

#[test]
fn orientation_in_xmp() {
    let xmp = |text: &str| with_app1(format!("http://ns.adobe.com/xap/1.0/\0{text}").as_bytes());
    assert!(is_turned(&xmp("<x tiff:Orientation=\"6\"/>")));
    assert!(is_turned(&xmp("<tiff:Orientation>8</tiff:Orientation>")));
    assert!(is_turned(&xmp("<x tiff:OrientationOfOther='1' tiff:Orientation=\"6\"/>")));
    assert!(!is_turned(&xmp("<x tiff:Orientation=\"x\"/> tiff:Orientation")));
}

#[test]
fn messages_hold_no_debug_text() {
    let png = data("images/landscape.png");
    let header = png.windows(4).position(|name| name == b"IHDR").unwrap();
    let pixels = png.windows(4).position(|name| name == b"IDAT").unwrap();
    for (at, value) in [(header + 12, 7), (pixels, b'X'), (pixels + 60, !png[pixels + 60])] {
        let mut contents = png.clone();
        contents[at] = value;
        let error = decode(&contents).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the picture cannot be decoded, the file is damaged or cut short: the PNG data is not valid"
        );
    }
}
