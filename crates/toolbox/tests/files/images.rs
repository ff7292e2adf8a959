//! `viewImage` with images of many sizes.

use serde_json::json;

use super::FilesWorkspace;

#[test]
fn images_are_detected_by_content_and_scaled_down() {
    let workspace = FilesWorkspace::new();
    let png = |width, height| {
        let mut out = std::io::Cursor::new(Vec::new());
        image::DynamicImage::new_rgb8(width, height)
            .write_to(&mut out, image::ImageFormat::Png)
            .unwrap();
        out.into_inner()
    };
    workspace.write("work/small.jpg", png(10, 20));
    workspace.write("work/large.png", png(4096, 1024));
    let source = "const i = await tools.viewImage({path: 'small.jpg'}); image(i); \
                  return [i.mimeType, i.width, i.height, i.scaled]";
    assert_eq!(workspace.value(source), json!(["image/png", 10, 20, false]));
    assert_eq!(
        workspace.value(
            "const i = await tools.viewImage({path: 'large.png'}); \
             return [i.width, i.height, i.scaled]"
        ),
        json!([2048, 512, true])
    );
    assert!(
        workspace
            .error("await tools.viewImage({path: 'src/lib.rs'})")
            .contains("is not a PNG, JPEG, GIF or WebP image")
    );

    // The result is also limited in bytes: an image with few pixels but much metadata, and an image
    // of noise that does not compress.
    let mut padded = png(10, 20);
    let end = padded.split_off(padded.len() - 12);
    let chunk = vec![b'x'; 15 << 20];
    padded.extend((chunk.len() as u32).to_be_bytes());
    let mut crc = flate2::Crc::new();
    crc.update(b"teXt");
    crc.update(&chunk);
    padded.extend([b"teXt", &chunk[..], &crc.sum().to_be_bytes(), &end].concat());
    workspace.write("work/padded.png", padded);
    let mut noise = 1u32;
    let noisy = image::RgbImage::from_fn(1300, 1300, |_, _| {
        image::Rgb(std::array::from_fn(|_| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (noise >> 24) as u8
        }))
    });
    noisy.save(workspace.path("work/noisy.png")).unwrap();
    let source = |name: &str| {
        format!(
            "const i = await tools.viewImage({{path: '{name}'}}); \
             return [i.width, i.height, i.scaled, i.data.length < 5_000_000, i.mimeType]"
        )
    };
    assert_eq!(
        workspace.value(&source("padded.png")),
        json!([10, 20, true, true, "image/png"])
    );
    assert_eq!(
        workspace.value(&source("noisy.png")),
        json!([1300, 1300, true, true, "image/jpeg"])
    );
    let whole = png(10, 20);
    workspace.write("work/broken.png", &whole[..whole.len() - 20]);
    assert!(
        workspace
            .error("await tools.viewImage({path: 'broken.png'})")
            .contains("cannot be decoded")
    );
}
