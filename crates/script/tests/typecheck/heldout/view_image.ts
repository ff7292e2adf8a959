// expect: ok
const image = await tools.viewImage({ path: "logo.png" });
return `${image.width}x${image.height} ${image.mimeType}`;
