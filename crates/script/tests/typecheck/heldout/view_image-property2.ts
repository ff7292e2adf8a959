// expect: property 3
const image = await tools.viewImage({ path: "logo.png" });
return `${image.size}x${image.height} ${image.mimeType}`;
